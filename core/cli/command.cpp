#include "core/cli/command.hpp"

#include <algorithm>
#include <cstdio>

#include "core/base/exit_code.hpp"
#include "yoke/nearest.hpp"

namespace yoke {
namespace {

std::vector<std::string> command_names(const CLI::App& app) {
  std::vector<std::string> names;
  for (const CLI::App* sub : app.get_subcommands([](const CLI::App*) { return true; })) {
    names.push_back(sub->get_name());
  }
  return names;
}

int misuse(const CLI::App& app, const std::string& what) {
  const std::string name = app.get_name();
  std::fprintf(stderr, "%s: %s; see: %s --help\n", name.c_str(), what.c_str(), name.c_str());
  return kExitUsage;
}

// Returns the innermost subcommand that was parsed.
const CLI::App& innermost(const CLI::App& app) {
  const CLI::App* at = &app;
  while (!at->get_subcommands().empty()) at = at->get_subcommands().front();
  return *at;
}

std::vector<std::string> flags_of(const CLI::App& app) {
  std::vector<std::string> flags;
  for (const CLI::Option* option : app.get_options()) {
    for (const std::string& name : option->get_lnames()) flags.push_back("--" + name);
  }
  return flags;
}

std::string unexpected(const CLI::App& app) {
  const std::vector<std::string> words = app.remaining(true);
  std::vector<std::string> quoted;
  for (const std::string& word : words) quoted.push_back("'" + word + "'");
  return "unexpected " + join(quoted) +
         (words.empty() ? "" : did_you_mean(words[0], flags_of(innermost(app))));
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
    const bool known = std::find(names.begin(), names.end(), args[0]) != names.end();
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

}  // namespace yoke
