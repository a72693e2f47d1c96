#include "core/cli/accepting_backends.hpp"

#include "core/base/exit_code.hpp"
#include "core/cli/check_run.hpp"
#include "core/cli/start_ranks.hpp"
#include "core/cli/stop.hpp"
#include "core/compare/cases.hpp"
#include "yoke/nearest.hpp"
#include "yoke/text.hpp"

namespace yoke {
namespace {

// Returns why a backend does not accept the run, "" = it accepts it.
std::string refusal_of(const std::string& config,
                       const std::vector<std::string>& overrides,
                       int ranks) {
  try {
    const CheckedRun run = check_config(config, overrides, ranks, FirstLoad::kByWorker);
    std::vector<std::string> words{"--forecast"};
    if (ranks > 0) words.insert(words.end(), {"--world", concat(ranks)});
    words.push_back(config);
    words.insert(words.end(), overrides.begin(), overrides.end());
    ask_worker(run, words);
    return "";
  } catch (const Stop& stop) {
    if (stop.exit_code == kExitSigint || stop.exit_code == kExitSigterm) throw;
    return stop.text;
  }
}

}  // namespace

std::vector<std::string> accepting_backends(const std::string& config,
                                            const std::vector<std::string>& overrides,
                                            std::optional<int> ranks,
                                            const std::vector<std::string>& names) {
  if (names.empty()) {
    throw Stop{kExitUsage,
               "no backend was found; set backend_path to the folders that contain backends"};
  }
  std::vector<std::string> accepting, refusals;
  for (const std::string& name : names) {
    const std::string why = refusal_of(
        config, compare::merged(overrides, {"parallel_backend=" + name}), ranks.value_or(0));
    if (why.empty()) {
      accepting.push_back(name);
    } else {
      refusals.push_back("backend '" + name + "' does not accept the run: " + why);
    }
  }
  if (accepting.empty()) throw Stop{kExitUsage, join(refusals, "\n")};
  for (const std::string& text : refusals) print_message("note: no case, because " + text);
  return accepting;
}

}  // namespace yoke
