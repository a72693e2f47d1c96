// yoke train runs in four steps: check the configuration, probe the backend, let the worker make a
// plan, launch the ranks. This program does not link LibTorch, so whatever needs a model (the plan,
// the data, the checkpoint to resume) is done by `yoke-worker --plan`, which prints one JSON
// object. Every error that can be found before a rank exists is found here, and reported together
// with the others.
//
// Under torchrun, mpirun or srun this process is already one rank. It then checks only the run file
// and replaces itself by the worker.
#include "core/cli/train.hpp"

#include <sys/prctl.h>
#include <unistd.h>

#include <charconv>
#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <nlohmann/json.hpp>
#include <optional>

#include "core/backend/probe.hpp"
#include "core/backend/search.hpp"
#include "core/base/cores.hpp"
#include "core/base/exit_code.hpp"
#include "core/base/subprocess.hpp"
#include "core/cli/command.hpp"
#include "core/cli/start_ranks.hpp"
#include "core/cli/worker_program.hpp"
#include "core/config/config.hpp"
#include "core/control/decline.hpp"
#include "core/launch/environment.hpp"
#include "yoke/error.hpp"
#include "yoke/text.hpp"

namespace yoke {
namespace {

constexpr int kMostRanks = 4096;

// Thrown to end the command with a message and an exit code.
struct Stop {
  int exit_code;
  std::string text;
};

struct Request {
  std::string config;
  std::vector<std::string> overrides;
  std::optional<int> nproc;
  std::optional<int> virtual_ranks;
  std::optional<int> nnodes;
  std::optional<int> node_rank;
  std::string master;  // "HOST:PORT" of machine 0
  int restarts = 0;
};

// Returns the number that follows a flag; empty if the flag is not given. what: "ranks".
std::optional<int> count_of(
    const std::string& flag, const std::string& text, const std::string& what, int min, int max) {
  if (text.empty()) return std::nullopt;
  int value = 0;
  const char* end = text.data() + text.size();
  const auto [at, error] = std::from_chars(text.data(), end, value);
  if (error != std::errc() || at != end || value < min || value > max) {
    throw Stop{kExitUsage,
               flag + " " + text + ": not a number of " + what + concat("; allowed: ", min) +
                   concat(" to ", max)};
  }
  return value;
}

// Returns an error if the given degrees cannot fit the number of ranks, else "". The backend
// chooses the unset degrees, but whatever it chooses, the product of the given ones must divide the
// number of ranks.
std::string degree_fault(const Request& request, const Degrees& degrees) {
  const int world =
      request.nproc.value_or(request.virtual_ranks.value_or(0)) * request.nnodes.value_or(1);
  const int product = degrees.product();
  if (world == 0 || world % product == 0) return "";
  std::string given;
  for (size_t axis = 0; axis < Degrees::kAxes.size(); ++axis) {
    if (!degrees[axis]) continue;
    given += concat(given.empty() ? "" : " x ", Degrees::kKeys[axis], " ", *degrees[axis]);
  }
  return concat("the product of the degrees (",
                given,
                ") is ",
                product,
                " and does not divide ",
                world,
                " ranks; start a multiple of ",
                product,
                " ranks, or change a degree");
}

// Returns why the chosen backend cannot be used, or "". This is the only probe of the run.
std::string backend_fault(const RunConfig& run, const std::string& worker) {
  if (run.parallel_backend.empty()) return "";  // load_config() has reported that
  try {
    const auto dirs = search_dirs(SearchSettings::current(run.backend_path));
    const std::string path = find_backend(run.parallel_backend, dirs);
    if (!worker.empty()) probe_backend(worker, path);
    return "";
  } catch (const Error& e) {
    return e.what();
  }
}

// Loads the configuration and finds the worker. Checks everything that does not depend on the plan
// (keys, worker, backend, degrees), and throws Stop with all errors at once.
LoadedConfig check_config(const Request& request, std::string& worker) {
  LoadedConfig config;
  std::vector<std::string> faults;
  try {
    config = load_config(request.config, request.overrides, process_environment(), backend_names);
  } catch (const ConfigError& e) {
    faults.push_back(e.what());
    config.run = e.sound_part();
  }
  try {
    worker = find_worker(config.run.worker);
  } catch (const Error& e) {
    faults.push_back(e.what());
  }
  const std::string backend = backend_fault(config.run, worker);
  if (backend.empty() && faults.empty()) return config;

  if (const std::string fault = degree_fault(request, config.run.degrees); !fault.empty())
    faults.push_back(fault);
  std::string text = backend;
  for (const std::string& fault : faults) text += (text.empty() ? "" : "\n") + fault;
  throw Stop{backend.empty() ? kExitUsage : kExitPlugin, text};
}

void add_config(std::vector<std::string>& argv, const Request& request) {
  argv.push_back(request.config);
  argv.insert(argv.end(), request.overrides.begin(), request.overrides.end());
}

// Runs the worker to make the plan, which starts no ranks and uses no device. The worker's errors
// go to stderr unchanged.
RankStart make_plan(const Request& request, const std::string& worker) {
  std::vector<std::string> argv{worker, "--plan"};
  if (const auto ranks = request.nproc ? request.nproc : request.virtual_ranks)
    argv.insert(argv.end(), {"--world", concat(*ranks * request.nnodes.value_or(1))});
  add_config(argv, request);
  const SubprocessResult result = run_subprocess(argv, {.limit = {}, .capture_err = false});
  if (result.ending.signal == SIGINT || result.ending.signal == SIGTERM)
    throw Stop{128 + result.ending.signal, ""};
  if (result.ending.signal != 0) {
    throw Stop{kExitFailed, worker + " --plan was killed by " + ending_text(result.ending)};
  }
  if (!result.ending.ok()) throw Stop{result.ending.exit_code, ""};
  try {
    const auto plan = nlohmann::json::parse(result.out);
    for (const auto& note : plan.at("notes")) print_message("note: " + note.get<std::string>());
    RankStart start;
    start.worker = worker;
    start.ranks = plan.at("world_size").get<int>() / request.nnodes.value_or(1);
    start.run_dir = plan.at("run_dir");
    start.resume = plan.at("resume");
    return start;
  } catch (const nlohmann::json::exception& e) {
    throw Stop{kExitFailed,
               worker + " --plan printed something that is not a plan (" + e.what() +
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
int become_rank(const Request& request, const LaunchEnvironment& env) {
  if (request.nproc || request.virtual_ranks) {
    throw Stop{kExitUsage,
               std::string(request.nproc ? "--nproc" : "--virtual") +
                   " starts ranks, but this process is already one, started by " + env.launcher +
                   "; remove the flag, or unset the launcher's variables"};
  }
  RunConfig run;
  try {
    run = load_config(request.config, request.overrides, process_environment(), backend_names).run;
  } catch (const ConfigError& e) {
    decline(env, e.what());
    throw Stop{kExitUsage, e.what()};
  }
  if (env.end_with_parent && run.launch.end_with_parent) ::prctl(PR_SET_PDEATHSIG, SIGTERM);
  const int threads = threads_per_rank(usable_cores(), env.local_world_size);
  ::setenv("OMP_NUM_THREADS", std::to_string(threads).c_str(), 0);
  std::vector<std::string> argv{find_worker(run.worker), "--env"};
  add_config(argv, request);
  return exec_worker(argv);
}

// Returns the machines that the flags describe.
std::optional<Machines> machines_of(const Request& request) {
  if (!request.nnodes) {
    if (request.node_rank || !request.master.empty())
      throw Stop{kExitUsage, "--node-rank and --master have no effect without --nnodes"};
    return std::nullopt;
  }
  const auto variable = [](const char* name) {
    const char* value = std::getenv(name);
    return std::string(value == nullptr ? "" : value);
  };
  const std::string master = request.master.empty()
                                 ? variable("MASTER_ADDR") + ":" + variable("MASTER_PORT")
                                 : request.master;
  const size_t colon = master.rfind(':');
  Machines machines;
  machines.count = *request.nnodes;
  machines.host = master.substr(0, colon);
  const char* end = master.data() + master.size();
  const bool is_port = colon != std::string::npos &&
                       std::from_chars(master.data() + colon + 1, end, machines.port).ptr == end &&
                       machines.port >= 1 && machines.port <= 65535;
  if (machines.host.empty() || !is_port) {
    throw Stop{kExitUsage,
               "--nnodes needs --master HOST:PORT, or MASTER_ADDR and MASTER_PORT: the address of "
               "machine 0 and a free port there; given: '" +
                   master + "'"};
  }
  if (!request.node_rank || *request.node_rank >= machines.count) {
    throw Stop{
        kExitUsage,
        concat("--nnodes ", machines.count, " needs --node-rank, the number of this machine; ") +
            concat("allowed: 0 to ", machines.count - 1)};
  }
  if (!request.nproc)
    throw Stop{kExitUsage, "--nnodes needs --nproc, the number of ranks on each machine"};
  machines.index = *request.node_rank;
  const std::string job = variable("YOKE_JOB");
  // The same on all machines and after a restart, and probably another one for another run.
  machines.job = job.empty()
                     ? "yoke train " + std::filesystem::path(request.config).filename().string()
                     : "job " + job;
  return machines;
}

// Starts the ranks of this machine. Machine 0 makes the plan and chooses the run folder for all.
int start(const Request& request) {
  std::string worker;
  RankStart start;
  const std::optional<Machines> machines = machines_of(request);
  try {
    check_config(request, worker);
    if (!machines || machines->index == 0) {
      start = make_plan(request, worker);
    } else {
      start.worker = worker;
      start.ranks = *request.nproc;
    }
  } catch (const Stop& stop) {
    if (machines) {
      decline(*machines,
              *request.nproc,
              stop.text.empty() ? "it could not make the plan; see its output" : stop.text);
    }
    throw;
  }
  start.threads = request.virtual_ranks.has_value();
  start.machines = machines;
  start.restarts = request.restarts;
  add_config(start.config, request);
  return start_ranks(start);
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
  return start(request);
}

}  // namespace

int train_command(const std::vector<std::string>& args) {
  CLI::App app("Trains a model as the run file describes.", "yoke train");
  Request request;
  std::string nproc, virtual_ranks, nnodes, node_rank, restarts;
  app.add_option("CONFIG", request.config, "run file (TOML)")->required();
  app.add_option("KEY=VALUE", request.overrides, "overrides of the run file, e.g. train.steps=10");
  app.add_option(
         "--nproc",
         nproc,
         "number of ranks to start on this machine; default: the product of the given degrees")
      ->type_name("N");
  app.add_option(
         "--virtual", virtual_ranks, "number of ranks to run as threads of one process instead")
      ->type_name("N");

  app.add_option("--restarts",
                 restarts,
                 "how often to start the ranks again from the newest checkpoint if one is lost; "
                 "default: 0")
      ->type_name("N");
  app.add_option("--nnodes", nnodes, "number of machines, on each of which this command runs")
      ->type_name("M");
  app.add_option("--node-rank", node_rank, "number of this machine: 0 to M - 1")->type_name("I");
  app.add_option("--master",
                 request.master,
                 "host of machine 0 and a free port there; default: MASTER_ADDR:MASTER_PORT")
      ->type_name("HOST:PORT");

  return run_command(app, args, [&]() -> int {
    try {
      request.nproc = count_of("--nproc", nproc, "ranks", 1, kMostRanks);
      request.virtual_ranks = count_of("--virtual", virtual_ranks, "ranks", 1, kMostRanks);
      request.nnodes = count_of("--nnodes", nnodes, "machines", 1, kMostRanks);
      request.node_rank = count_of("--node-rank", node_rank, "machines", 0, kMostRanks - 1);
      request.restarts = count_of("--restarts", restarts, "restarts", 0, 1'000'000).value_or(0);
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
