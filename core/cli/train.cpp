// yoke train runs in three steps: check the configuration, let the worker make a plan, launch the
// ranks. This program does not link LibTorch, so whatever needs a backend or a model (the plan, the
// data, the checkpoint to resume) is done by `yoke-worker --plan`, which prints one JSON object.
// Every error that can be found before a rank exists is found here, and reported together
// with the others.
//
// Under torchrun, mpirun or srun this process is already one rank. It then checks only the run file
// and replaces itself by the worker.
#include "core/cli/train.hpp"

#include <sys/prctl.h>
#include <unistd.h>

#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <nlohmann/json.hpp>
#include <optional>

#include "core/backend/search.hpp"
#include "core/base/cores.hpp"
#include "core/base/exit_code.hpp"
#include "core/cli/check_run.hpp"
#include "core/cli/command.hpp"
#include "core/cli/elastic.hpp"
#include "core/cli/start_ranks.hpp"
#include "core/cli/trace_abi.hpp"
#include "core/cli/train_request.hpp"
#include "core/cli/worker_program.hpp"
#include "core/config/config.hpp"
#include "core/control/decline.hpp"
#include "core/launch/environment.hpp"
#include "yoke/error.hpp"
#include "yoke/text.hpp"

namespace yoke {
namespace {

// Returns the number of ranks on so many machines; 0 = the plan decides.
int world_size(const Request& request, int machines) {
  return request.nproc.value_or(request.virtual_ranks.value_or(0)) * machines;
}

// Returns the largest number of ranks of the run, which is the same on all machines.
int most_ranks(const Request& request) {
  return world_size(request, request.nnodes.value_or(NumMachines()).max);
}

void add_config(std::vector<std::string>& argv, const Request& request) {
  argv.push_back(request.config);
  argv.insert(argv.end(), request.overrides.begin(), request.overrides.end());
}

// Runs the worker to make the plan for a number of machines, which starts no ranks and uses no
// device. run_dir: folder of a run that continues; "" = the plan chooses one.
RankStart make_plan(const Request& request,
                    const CheckedRun& run,
                    int machines,
                    const std::string& run_dir = "") {
  std::vector<std::string> words{"--plan"};
  if (const int world = world_size(request, machines); world > 0)
    words.insert(words.end(), {"--world", concat(world)});
  if (machines > 1) words.insert(words.end(), {"--machines", concat(machines)});
  if (!run_dir.empty()) words.insert(words.end(), {"--run-dir", run_dir});
  add_config(words, request);
  const std::string out = ask_worker(run, words);
  try {
    const auto plan = nlohmann::json::parse(out);
    RankStart start;
    start.worker = run.worker;
    start.ranks = plan.at("world_size").get<int>() / machines;
    start.run_dir = plan.at("run_dir");
    start.resume = plan.at("resume");
    return start;
  } catch (const nlohmann::json::exception& e) {
    throw Stop{kExitFailed,
               run.worker + " --plan printed something that is not a plan (" + e.what() +
                   "); is it a yoke-worker of this version?"};
  }
}

// Tells the other ranks why this one does not take part.
void decline(const LaunchEnvironment& env, const std::string& why) {
  if (env.world_size == 1 || env.store_served) return;  // torchrun ends the other ranks itself
  const ControlAddress at{"", env.master_addr, env.master_port};
  decline_run({.at = at,
               .rank = env.rank,
               .world_size = env.world_size,
               .one_machine = env.local_world_size == env.world_size,
               .job = env.job,
               .secret = Secret::from_environment()},
              why);
}

// Continues as one rank of a run that another launcher started.
int become_rank(Request request, const LaunchEnvironment& env) {
  if (request.nproc || request.virtual_ranks) {
    throw Stop{kExitUsage,
               std::string(request.nproc ? "--nproc" : "--virtual") +
                   " starts ranks, but this process is already one, started by " + env.launcher +
                   "; remove the flag, or unset the launcher's variables"};
  }
  RunConfig run;
  std::string worker;
  try {
    run = load_config(request.config, request.overrides, process_environment(), backend_names).run;
    worker = find_worker(run.worker);
  } catch (const Error& e) {
    print_message(e.what());  // first, because it may take a while to tell the others
    decline(env, e.what());
    throw Stop{kExitUsage, ""};
  }
  add_tracer(request, run);
  if (env.end_with_parent && run.launch.end_with_parent) ::prctl(PR_SET_PDEATHSIG, SIGTERM);
  const int threads = threads_per_rank(usable_cores(), env.local_world_size);
  ::setenv("OMP_NUM_THREADS", std::to_string(threads).c_str(), 0);
  std::vector<std::string> argv{worker, "--env"};
  add_config(argv, request);
  const int code = exec_worker(argv);  // returns only if the worker cannot be started
  decline(env, worker + " cannot be started; see the output of this rank");
  return code;
}

// Starts the ranks of this machine. Machine 0 makes the plan and chooses the run folder for all.
int start(Request request, const std::optional<Machines>& machines) {
  RankStart start;
  try {
    const bool plans = !machines || machines->index == 0;
    const CheckedRun run = check_config(request.config,
                                        request.overrides,
                                        most_ranks(request),
                                        plans ? FirstLoad::kByWorker : FirstLoad::kNow);
    add_tracer(request, run.config.run);
    if (plans) {
      start = make_plan(request, run, machines ? machines->count : 1);
    } else {
      start.worker = run.worker;
      start.ranks = *request.nproc;
    }
  } catch (const Stop& stop) {
    if (!machines) throw;
    if (!stop.text.empty()) print_message(stop.text);
    decline(*machines,
            *request.nproc,
            stop.text.empty() ? "it could not make the plan; see its output" : stop.text);
    throw Stop{stop.exit_code, ""};
  }
  start.threads = request.virtual_ranks.has_value();
  start.machines = machines;
  add_config(start.config, request);
  return start_ranks(start, request.restarts);
}

// Returns what must be the same on all machines.
Introduction facts_of(const Request& request, const LoadedConfig& config) {
  Introduction facts{{"version of Yoke", YOKE_VERSION, ""},
                     {"--nnodes", concat(request.nnodes->min, ":", request.nnodes->max), ""},
                     {"--nproc", concat(*request.nproc), ""}};
  for (const Resolved& item : shared_values(config))
    facts.push_back({item.key, item.value, item.origin});
  return facts;
}

// Starts the ranks of this machine, and starts them again whenever a machine joins or leaves.
int start_elastic(Request request, const Machines& machines) {
  CheckedRun run;
  try {
    run = check_config(request.config, request.overrides, 0, FirstLoad::kNow);
    add_tracer(request, run.config.run);
  } catch (const Stop& stop) {
    print_message(stop.text);
    decline_elastic(machines, stop.text);
    throw Stop{stop.exit_code, ""};
  }
  ElasticStart e;
  e.start.worker = run.worker;
  e.start.ranks = *request.nproc;
  e.start.machines = machines;
  add_config(e.start.config, request);
  e.min = request.nnodes->min;
  e.restarts = request.restarts;
  e.saves = run.config.run.checkpoint.every > 0;
  e.launch = run.config.run.launch;
  e.facts = facts_of(request, run.config);
  e.plan = [&](int count, const std::string& run_dir) {
    const std::string fault = degree_fault(world_size(request, count), run.config.run.degrees);
    if (!fault.empty()) {
      throw Stop{kExitUsage,
                 concat("with ", count, count == 1 ? " machine" : " machines", " (--nnodes ") +
                     concat(e.min, ":", machines.count, "), ", fault) +
                     ", or leave it unset, so that the backend chooses it for each attempt"};
    }
    return make_plan(request, run, count, run_dir);
  };
  return run_elastic(e);
}

int train(const Request& request) {
  // If a launcher started a single process, --nproc and --virtual still start ranks here. With
  // --nnodes, a launcher starts one `yoke train` on each machine.
  const bool starts_ranks = request.nproc || request.virtual_ranks;
  if (const auto env = request.nnodes ? std::nullopt : launch_environment();
      env && (env->world_size > 1 || !starts_ranks))
    return become_rank(request, *env);
  if (request.nproc && request.virtual_ranks) {
    throw Stop{kExitUsage,
               "--nproc and --virtual exclude each other: ranks are either processes or threads of "
               "one process"};
  }
  const std::optional<Machines> machines = machines_of(request);
  if (machines && request.nnodes->elastic) return start_elastic(request, *machines);
  return start(request, machines);
}

}  // namespace

int train_command(const std::vector<std::string>& args) {
  CLI::App app("Trains a model as the run file describes.", "yoke train");
  Request request;
  TrainFlags flags;
  app.add_option("CONFIG", request.config, "run file (TOML)")->required();
  app.add_option("KEY=VALUE", request.overrides, "overrides of the run file, e.g. train.steps=10");
  app.add_option(
         "--nproc",
         flags.nproc,
         "number of ranks to start on this machine; default: the product of the given degrees")
      ->type_name("N");
  app.add_option("--virtual",
                 flags.virtual_ranks,
                 "number of ranks to run as threads of one process instead")
      ->type_name("N");

  app.add_option("--restarts",
                 flags.restarts,
                 "how often to start the ranks again from the newest checkpoint if one is lost; "
                 "default: 0")
      ->type_name("N");
  app.add_option("--nnodes",
                 flags.nnodes,
                 "number of machines, on each of which this command runs; MIN:MAX: the run starts "
                 "and restarts with the machines that are there")
      ->type_name("M|MIN:MAX");
  app.add_option(
         "--node-rank", flags.node_rank, "number of this machine: 0 to M - 1, or to MAX - 1")
      ->type_name("I");
  app.add_option("--master",
                 request.master,
                 "host of machine 0 and a free port there, with MIN:MAX two free ports: this one "
                 "and the next; default: MASTER_ADDR:MASTER_PORT")
      ->type_name("HOST:PORT");
  app.add_option("--trace-abi",
                 request.trace_abi,
                 "file for every call between host and backend, as lines of JSON; the file of rank "
                 "1 is FILE with _001 before its extension")
      ->type_name("FILE");

  return run_command(app, args, [&]() -> int {
    try {
      read_flags(flags, request);
      check_trace_abi(request.trace_abi);
      return train(request);
    } catch (const Stop& stop) {
      if (!stop.text.empty()) print_message(stop.text);
      return stop.exit_code;
    } catch (const Error& e) {
      print_message(e.what());
      return e.code() == YOKE_INVALID_ARGUMENT || e.code() == YOKE_FAILED_PRECONDITION
                 ? kExitUsage
                 : kExitFailed;
    }
  });
}

}  // namespace yoke
