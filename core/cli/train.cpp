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
#include "core/base/exit_code.hpp"
#include "core/base/files.hpp"
#include "core/base/subprocess.hpp"
#include "core/cli/command.hpp"
#include "core/cli/worker_program.hpp"
#include "core/config/config.hpp"
#include "core/control/decline.hpp"
#include "core/launch/environment.hpp"
#include "core/launch/launcher.hpp"
#include "core/launch/rendezvous_folder.hpp"
#include "core/metrics/run_folder.hpp"
#include "yoke/error.hpp"
#include "yoke/text.hpp"

namespace yoke {
namespace {

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
};

// How to start the run, as determined by the configuration and the plan.
struct Start {
  std::string worker;
  int ranks = 1;
  std::string run_dir;
  std::string resume;
};

void print_message(const std::string& text) {
  std::fprintf(stderr, "yoke: %s\n", text.c_str());
}

std::optional<int> rank_count(const std::string& flag, const std::string& text) {
  if (text.empty()) return std::nullopt;
  int value = 0;
  const char* end = text.data() + text.size();
  const auto [at, error] = std::from_chars(text.data(), end, value);
  if (error != std::errc() || at != end || value < 1 || value > 4096) {
    throw Stop{kExitUsage, flag + " " + text + ": not a number of ranks; allowed: 1 to 4096"};
  }
  return value;
}

// Returns an error if the given degrees cannot fit the number of ranks, else "". The backend
// chooses the unset degrees, but whatever it chooses, the product of the given ones must divide the
// number of ranks.
std::string degree_fault(const Request& request, const Degrees& degrees) {
  const int world = request.nproc.value_or(request.virtual_ranks.value_or(0));
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
Start make_plan(const Request& request, const std::string& worker) {
  std::vector<std::string> argv{worker, "--plan"};
  if (const auto world = request.nproc ? request.nproc : request.virtual_ranks) {
    argv.insert(argv.end(), {"--world", std::to_string(*world)});
  }
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
    return {worker, plan.at("world_size"), plan.at("run_dir"), plan.at("resume")};
  } catch (const nlohmann::json::exception& e) {
    throw Stop{kExitFailed,
               worker + " --plan printed something that is not a plan (" + e.what() +
                   "); is it a yoke-worker of this version?"};
  }
}

std::vector<std::string> common_arguments(const Request& request, const Start& start) {
  std::vector<std::string> argv{"--run-dir", start.run_dir};
  if (::isatty(STDOUT_FILENO) == 1) argv.push_back("--terminal");
  if (!start.resume.empty()) argv.insert(argv.end(), {"--resume", start.resume});
  add_config(argv, request);
  return argv;
}

// Returns the variable OMP_NUM_THREADS for the ranks, unless the user has set it, and prints how
// many ranks and threads will run.
std::vector<std::pair<std::string, std::string>> thread_variables(const Start& start) {
  const int cores = usable_cores();
  if (start.ranks > 2 * cores) {
    print_message(concat("warning: ",
                         start.ranks,
                         " ranks on ",
                         cores,
                         cores == 1 ? " core" : " cores",
                         "; the run will be slow"));
  }
  const std::string ranks = concat(start.ranks, start.ranks == 1 ? " rank, " : " ranks, ");
  const std::string each = start.ranks == 1 ? "" : " each";
  if (const char* given = std::getenv("OMP_NUM_THREADS")) {
    print_message(ranks + given + " threads" + each + " (OMP_NUM_THREADS)");
    return {};
  }
  const int threads = threads_per_rank(cores, start.ranks);
  print_message(concat(ranks, threads, threads == 1 ? " thread" : " threads", each));
  return {{"OMP_NUM_THREADS", std::to_string(threads)}};
}

// The ranks write exit.json. If all of them were killed, or failed earlier, the launcher writes it.
void leave_record(const std::string& run_dir, int code, const std::string& cause) {
  std::error_code error;
  if (!std::filesystem::is_directory(run_dir, error)) return;  // no rank has created it
  try {
    leave_exit_record(run_dir, {code, cause.empty() ? "rank 0 ended without a record" : cause, -1});
  } catch (const Error& e) {
    print_message(concat("exit.json is missing: ", e.what()));
  }
}

int launch(const Request& request, const Start& start) {
  const auto variables = thread_variables(start);
  const auto common = common_arguments(request, start);
  const RendezvousFolder rendezvous;
  std::vector<RankCommand> commands;
  if (request.virtual_ranks) {
    commands.push_back({{start.worker, "--virtual", std::to_string(start.ranks)}, variables});
  } else {
    for (int rank = 0; rank < start.ranks; ++rank) {
      commands.push_back({{start.worker,
                           "--rank",
                           std::to_string(rank),
                           "--world",
                           std::to_string(start.ranks),
                           "--rendezvous",
                           rendezvous.path()},
                          variables});
    }
  }
  for (RankCommand& c : commands) c.argv.insert(c.argv.end(), common.begin(), common.end());
  // A resumed run may end before rank 0 removes the record of the process before it.
  remove_file(start.run_dir + "/exit.json");
  std::string cause;
  const int code = launch_ranks(commands, &cause);
  leave_record(start.run_dir, code, cause);
  if (code != kExitOk && code != kExitSaved && code != kExitSigint && code != kExitSigterm)
    print_message("logs of all ranks: " + start.run_dir + "/logs");
  return code;
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

int train(const Request& request) {
  // If a launcher started a single process, --nproc and --virtual still start ranks here.
  const bool starts_ranks = request.nproc || request.virtual_ranks;
  if (const auto env = launch_environment(); env && (env->world_size > 1 || !starts_ranks))
    return become_rank(request, *env);
  if (request.nproc && request.virtual_ranks) {
    throw Stop{kExitUsage,
               "--nproc and --virtual exclude each other: ranks are either processes or threads of "
               "one process"};
  }
  std::string worker;
  check_config(request, worker);
  return launch(request, make_plan(request, worker));
}

}  // namespace

int train_command(const std::vector<std::string>& args) {
  CLI::App app("Trains a model as the run file describes.", "yoke train");
  Request request;
  std::string nproc, virtual_ranks;
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

  return run_command(app, args, [&]() -> int {
    try {
      request.nproc = rank_count("--nproc", nproc);
      request.virtual_ranks = rank_count("--virtual", virtual_ranks);
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
