#include "core/cli/config.hpp"

#include <cstdio>

#include "core/backend/search.hpp"
#include "core/base/exit_code.hpp"
#include "core/cli/check_run.hpp"
#include "core/cli/command.hpp"
#include "core/cli/table.hpp"
#include "core/cli/worker_program.hpp"
#include "core/config/config.hpp"
#include "core/config/schema.hpp"
#include "yoke/text.hpp"

namespace yoke {
namespace {

struct ConfigRequest {
  std::string config;
  std::vector<std::string> overrides;
  std::string nproc;  // as given; "" = the backend is not asked
  bool origin = false;
  bool json = false;
  bool partial = false;
};

int show(const ConfigRequest& request) {
  const LoadedConfig config =
      load_config(request.config, request.overrides, process_environment(), backend_names);
  const std::string text = request.json     ? origins_json(config)
                           : request.origin ? to_toml_with_origins(config)
                                            : to_toml(config);
  std::fputs(text.c_str(), stdout);
  return kExitOk;
}

// Prints what a run on so many ranks would have. Only the backend knows which degrees it chooses
// and what the config of another program sets, so the worker, which loads it, answers.
int show_planned(const ConfigRequest& request) {
  try {
    const std::string world = concat(*count_of("--nproc", request.nproc, "ranks", 1, kMostRanks));
    const CheckedRun run =
        check_config(request.config, request.overrides, std::stoi(world), FirstLoad::kByWorker);
    const char* format = request.json ? "json" : request.origin ? "origin" : "text";
    std::vector<std::string> words{"--config", format, "--world", world, request.config};
    words.insert(words.end(), request.overrides.begin(), request.overrides.end());
    std::fputs(ask_worker(run, words).c_str(), stdout);
    return kExitOk;
  } catch (const Stop& stop) {
    if (!stop.text.empty()) print_message(stop.text);
    return stop.exit_code;
  }
}

// Only a backend can read the config of another program, so the worker, which loads backends,
// imports the file.
int import_file(const ConfigRequest& request) {
  try {
    std::vector<std::string> argv{find_worker(""), "--translate", request.config};
    argv.insert(argv.end(), request.overrides.begin(), request.overrides.end());
    if (request.partial) argv.emplace_back("--partial");
    return exec_worker(argv);
  } catch (const Error& e) {
    std::fprintf(stderr, "yoke: %s\n", e.what());
    return kExitUsage;
  }
}

std::string default_text(const Key& key) {
  const std::optional<Value> value = default_of(key);
  if (value) return to_text(*value);
  return key.is(kRequired) ? "required" : "unset";
}

int schema_text() {
  Table table({"key", "type", "default", "allowed", "meaning"});
  for (const Key& key : schema()) {
    table.add({std::string(key.name),
               type_name(key),
               default_text(key),
               allowed(key),
               std::string(key.doc)});
  }
  std::fputs(table.text().c_str(), stdout);
  std::puts(
      "\nThe table [NAME] holds the options of the backend NAME; see: yoke backends info NAME");
  std::puts("A variable can set a key as well: YOKE_TRAIN_STEPS=10 means train.steps=10.");
  return kExitOk;
}

int list_schema(bool json) {
  if (!json) return schema_text();
  std::fputs(schema_json().c_str(), stdout);
  return kExitOk;
}

}  // namespace

int config_command(const std::vector<std::string>& args) {
  CLI::App app(
      "Shows the configuration of a run, lists all keys, and imports configs of other programs.",
      "yoke config");
  app.require_subcommand(1);
  ConfigRequest request;
  CLI::App* show_app = app.add_subcommand(
      "show", "print the complete configuration: run file, variables and overrides combined");
  show_app->add_option("CONFIG", request.config, "run file (TOML)")->required();
  show_app->add_option("KEY=VALUE", request.overrides, "overrides, e.g. train.steps=10");
  show_app->add_flag("--origin", request.origin, "print where each value comes from");
  show_app->add_option("--nproc",
                       request.nproc,
                       "number of ranks: ask the backend for the degrees that it chooses and the "
                       "values of another program's config; starts no rank");
  CLI::App* schema_app =
      app.add_subcommand("schema", "list every key with its type, default and range");
  CLI::App* import_app = app.add_subcommand(
      "import",
      "translate a config of another program into a run file, by the backend that reads it");
  import_app->add_option("FILE", request.config, "config to import, e.g. an accelerate.yaml")
      ->required();
  import_app->add_option("KEY=VALUE", request.overrides, "more keys of the run file");
  import_app->add_flag("--partial",
                       request.partial,
                       "write keys that cannot be honoured as comments instead of failing");
  for (CLI::App* sub : {show_app, schema_app}) {
    sub->add_flag("--json", request.json, "print JSON");
  }
  return run_command(app, args, [&] {
    if (schema_app->parsed()) return list_schema(request.json);
    if (import_app->parsed()) return import_file(request);
    try {
      return request.nproc.empty() ? show(request) : show_planned(request);
    } catch (const ConfigError& e) {
      std::fprintf(stderr, "yoke: %s\n", e.what());
      return static_cast<int>(kExitUsage);
    }
  });
}

}  // namespace yoke
