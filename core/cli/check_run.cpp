#include "core/cli/check_run.hpp"

#include <csignal>

#include "core/backend/library_file.hpp"
#include "core/backend/probe.hpp"
#include "core/backend/search.hpp"
#include "core/base/exit_code.hpp"
#include "core/base/subprocess.hpp"
#include "core/cli/start_ranks.hpp"
#include "core/cli/worker_program.hpp"
#include "yoke/error.hpp"
#include "yoke/text.hpp"

namespace yoke {
namespace {

// Returns why the chosen backend cannot be used, or "". Sets `untested` to its path if no probe was
// made.
std::string backend_fault(const RunConfig& run,
                          const std::string& worker,
                          bool probe,
                          std::string& untested) {
  if (run.parallel_backend.empty()) return "";  // load_config() has reported that
  try {
    const auto dirs = search_dirs(SearchSettings::current(run.backend_path));
    const std::string path = find_backend(run.parallel_backend, dirs);
    if (!probe) {
      check_library_file(path);
      untested = path;
    } else if (!worker.empty()) {
      probe_backend(worker, path);
    }
    return "";
  } catch (const Error& e) {
    return e.what();
  }
}

}  // namespace

std::string degree_fault(int world, const Degrees& degrees) {
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
                world == 1 ? " rank" : " ranks",
                "; start a multiple of ",
                product,
                " ranks, or change a degree");
}

CheckedRun check_config(const std::string& path,
                        const std::vector<std::string>& overrides,
                        int world,
                        FirstLoad load) {
  CheckedRun run;
  LoadedConfig& config = run.config;
  std::vector<std::string> faults;
  try {
    config = load_config(path, overrides, process_environment(), backend_names);
  } catch (const ConfigError& e) {
    faults.push_back(e.what());
    config.run = e.sound_part();
  }
  try {
    run.worker = find_worker(config.run.worker);
  } catch (const Error& e) {
    faults.push_back(e.what());
  }
  const bool probe = load == FirstLoad::kNow || !faults.empty();
  const std::string backend = backend_fault(config.run, run.worker, probe, run.untested);
  if (backend.empty() && faults.empty()) return run;

  if (const std::string fault = degree_fault(world, config.run.degrees); !fault.empty())
    faults.push_back(fault);
  std::string text = backend;
  for (const std::string& fault : faults) text += (text.empty() ? "" : "\n") + fault;
  throw Stop{backend.empty() ? kExitUsage : kExitPlugin, text};
}

std::string ask_worker(const CheckedRun& run, const std::vector<std::string>& words) {
  std::vector<std::string> argv{run.worker};
  argv.insert(argv.end(), words.begin(), words.end());
  if (!run.untested.empty()) argv.insert(argv.end(), {"--first-load", run.untested});
  const SubprocessResult result = run_subprocess(argv, {.limit = {}});
  if (result.ending.signal == SIGINT || result.ending.signal == SIGTERM)
    throw Stop{128 + result.ending.signal, ""};
  std::string err = result.err;
  while (!err.empty() && err.back() == '\n') err.pop_back();
  if (result.ending.signal != 0)
    throw Stop{kExitFailed,
               argv[0] + " " + argv[1] + " was killed by " + ending_text(result.ending) +
                   (err.empty() ? "" : "; it had printed:\n" + err)};
  if (!result.ending.ok()) throw Stop{result.ending.exit_code, err};
  if (!err.empty()) print_message(err);
  return result.out;
}

}  // namespace yoke
