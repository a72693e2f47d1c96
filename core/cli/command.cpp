#include "core/cli/command.hpp"

#include <algorithm>
#include <cstdio>
#include <string_view>
#include <utility>

#include "core/base/exit_code.hpp"
#include "yoke/nearest.hpp"
#include "yoke/text.hpp"

namespace yoke {
namespace {

std::vector<std::string> command_names(const CLI::App& app) {
  std::vector<std::string> names;
  for (const CLI::App* sub : app.get_subcommands([](const CLI::App*) { return true; })) {
    names.push_back(sub->get_name());
  }
  return names;
}

// Returns the innermost subcommand that was parsed.
const CLI::App& innermost(const CLI::App& app) {
  const CLI::App* at = &app;
  while (!at->get_subcommands().empty()) at = at->get_subcommands().front();
  return *at;
}

int misuse(const CLI::App& app, const std::string& what) {
  const CLI::App& sub = innermost(app);
  const std::string name = app.get_name() + (&sub == &app ? "" : " " + sub.get_name());
  std::fprintf(stderr, "%s: %s; see: %s --help\n", name.c_str(), what.c_str(), name.c_str());
  return kExitUsage;
}

std::vector<std::string> flags_of(const CLI::App& app) {
  std::vector<std::string> flags;
  for (const CLI::Option* option : app.get_options()) {
    for (const std::string& name : option->get_lnames()) flags.push_back("--" + name);
  }
  return flags;
}

// Flags of torchrun, Accelerate, DeepSpeed, mpirun and srun, and the flags of yoke that mean the
// same. The nearest spelling of such a name would be another flag, or none.
constexpr std::pair<std::string_view, std::string_view> kFlagsOfOthers[] = {
    {"--nproc-per-node", "--nproc"},
    {"--num-processes", "--nproc"},
    {"--num-gpus", "--nproc"},
    {"--ntasks", "--nproc"},
    {"--world-size", "--nproc"},
    {"-np", "--nproc"},
    {"-n", "--nproc"},
    {"--num-machines", "--nnodes"},
    {"--num-nodes", "--nnodes"},
    {"--nodes", "--nnodes"},
    {"--machine-rank", "--node-rank"},
    {"--master-addr", "--master"},
    {"--master-port", "--master"},
    {"--main-process-ip", "--master"},
    {"--main-process-port", "--master"},
    {"--rdzv-endpoint", "--master"},
    {"--max-restarts", "--restarts"},
};

// Returns "; did you mean '--nproc'?", or how a key of a run file is written, or "".
std::string hint_for_flag(const std::string& word, const CLI::App& app) {
  const std::vector<std::string> flags = flags_of(app);
  std::string name = word.substr(0, word.find('='));
  std::replace(name.begin(), name.end(), '_', '-');
  for (const auto& [other, own] : kFlagsOfOthers) {
    if (name == other && std::find(flags.begin(), flags.end(), own) != flags.end())
      return concat("; did you mean '", own, "'?");
  }
  const bool has_file = app.get_option_no_throw("CONFIG") != nullptr;
  if (has_file && (name == "--config" || name == "--config-file" || name == "-c"))
    return "; the run file is given without a flag";
  const std::string nearest = did_you_mean(name, flags);
  const bool has_keys = app.get_option_no_throw("KEY=VALUE") != nullptr;
  if (!nearest.empty() || !has_keys || !word.starts_with("--")) return nearest;
  return "; a key of the run file is written KEY=VALUE without hyphens, such as train.steps=10";
}

std::string unexpected(const CLI::App& app) {
  const std::vector<std::string> words = app.remaining(true);
  std::vector<std::string> quoted;
  for (const std::string& word : words) quoted.push_back("'" + word + "'");
  return "unexpected " + join(quoted) +
         (words.empty() ? "" : hint_for_flag(words[0], innermost(app)));
}

}  // namespace

int run_command(CLI::App& app,
                const std::vector<std::string>& args,
                const std::function<int()>& body) {
  const std::vector<std::string> names = command_names(app);
  if (!names.empty()) {
    if (args.empty()) {
      std::fputs(app.help().c_str(), stderr);
      return kExitUsage;
    }
    // check_name() knows aliases, too.
    const auto is_called = [&](const CLI::App* sub) { return sub->check_name(args[0]); };
    const bool known = !app.get_subcommands(is_called).empty();
    if (!known && !args[0].starts_with('-')) {
      return misuse(app,
                    "unknown command '" + args[0] + "'; allowed: " + join(names) +
                        did_you_mean(args[0], names));
    }
  }
  try {
    app.parse(std::vector<std::string>(args.rbegin(), args.rend()));  // CLI11 expects reverse order
  } catch (const CLI::ExtrasError&) {
    return misuse(app, unexpected(app));
  } catch (const CLI::ParseError& e) {
    if (e.get_exit_code() == 0) return app.exit(e);
    return misuse(app, e.what());
  }
  return body();
}

int exit_code_of(const Error& e) {
  const bool misuse = e.code() == YOKE_INVALID_ARGUMENT || e.code() == YOKE_NOT_FOUND ||
                      e.code() == YOKE_FAILED_PRECONDITION;
  return misuse ? kExitUsage : kExitFailed;
}

std::string shell_word(const std::string& word) {
  constexpr const char* kPlain =
      "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789_@%+=:,./-";
  if (!word.empty() && word.find_first_not_of(kPlain) == std::string::npos) return word;
  std::string quoted = "'";
  for (const char c : word) quoted += c == '\'' ? std::string("'\\''") : std::string(1, c);
  return quoted + "'";
}

}  // namespace yoke
