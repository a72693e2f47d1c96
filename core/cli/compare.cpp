// yoke compare: turns the command line and the run file into a compare::Plan, checks whatever
// it can before hours of runs start, and prints the result. core/compare runs and
// compares the cases.
#include "core/cli/compare.hpp"

#include <unistd.h>

#include <algorithm>
#include <charconv>
#include <cstdio>
#include <filesystem>
#include <optional>
#include <sstream>

#include "core/backend/search.hpp"
#include "core/base/cores.hpp"
#include "core/base/exit_code.hpp"
#include "core/base/files.hpp"
#include "core/cli/accepting_backends.hpp"
#include "core/cli/command.hpp"
#include "core/cli/external_json.hpp"
#include "core/cli/output_file.hpp"
#include "core/cli/stop.hpp"
#include "core/cli/table.hpp"
#include "core/compare/case_process.hpp"
#include "core/compare/comparison.hpp"
#include "core/compare/gate.hpp"
#include "core/compare/recommendation.hpp"
#include "core/compare/report.hpp"
#include "core/compare/results.hpp"
#include "core/compare/summary.hpp"
#include "core/config/config.hpp"
#include "core/launch/environment.hpp"
#include "core/metrics/metrics.hpp"
#include "core/metrics/run_folder.hpp"
#include "yoke/nearest.hpp"
#include "yoke/text.hpp"

namespace yoke {
namespace {

using compare::CaseSpec;
using compare::Comparison;

// The parsed command line.
struct Request {
  std::string config;
  std::vector<std::string> overrides, cases, externals, gates;
  std::optional<int64_t> nproc, steps;
  int64_t repeats = 3, timeout = 600;
  std::string backends, level, format = "table", report, json_file, words;
};

void print_message(const std::string& text) {
  std::fprintf(stderr, "yoke: %s\n", text.c_str());
}

LoadedConfig load(const Request& request, const std::vector<std::string>& overrides) {
  return load_config(request.config, overrides, process_environment(), backend_names);
}

// Returns the reference run, to which all cases are compared: the run file in one process, where no
// gradient is reduced. If the run file is not complete by itself, the run takes the overrides of
// the first case.
CaseSpec single_process(const Request& request, const std::vector<CaseSpec>& cases) {
  CaseSpec spec;
  spec.name = compare::kReference;
  spec.nproc = 1;
  spec.overrides = {"pp_degree=1", "dp_degree=1", "dp_shards=1", "cp_degree=1", "tp_degree=1"};
  try {
    load(request, request.overrides);
  } catch (const ConfigError&) {
    const auto first =
        std::find_if(cases.begin(), cases.end(), [](const CaseSpec& c) { return !c.external(); });
    if (first != cases.end()) spec.overrides = compare::merged(first->overrides, spec.overrides);
  }
  return spec;
}

std::vector<CaseSpec> given_cases(const Request& request) {
  std::vector<CaseSpec> cases;
  std::istringstream backends(request.backends);
  for (std::string name; std::getline(backends, name, ',');)
    cases.push_back(
        {std::filesystem::path(name).stem().string(), {"parallel_backend=" + name}, {}, ""});
  for (const std::string& text : request.cases) cases.push_back(compare::parse_case(text));
  for (const std::string& text : request.externals) cases.push_back(compare::parse_external(text));
  return cases;
}

// Returns the cases of the command line, else those of the run file, else one for each backend that
// is found and accepts the run.
std::vector<CaseSpec> all_cases(const Request& request) {
  std::vector<CaseSpec> cases = given_cases(request);
  if (cases.empty()) {
    std::vector<std::string> notes;
    cases = compare::cases_of_file(request.config, notes);
    for (const std::string& note : notes) print_message("note: " + note);
  }
  if (cases.empty()) {
    const LoadedConfig config = load(request, request.overrides);
    const auto ranks =
        request.nproc ? std::optional(static_cast<int>(*request.nproc)) : std::nullopt;
    for (const std::string& name : accepting_backends(
             request.config, request.overrides, ranks, backend_names(config.run.backend_path)))
      cases.push_back({name, {"parallel_backend=" + name}, {}, ""});
  }
  for (CaseSpec& spec : cases) {
    if (!spec.nproc && request.nproc && !spec.external())
      spec.nproc = static_cast<int>(*request.nproc);
  }
  compare::check_names(cases);
  return cases;
}

// Checks every case by itself and against the first one, and returns the configurations. Throws
// Stop with all errors at once.
std::vector<LoadedConfig> check_cases(const Request& request, const std::vector<CaseSpec>& cases) {
  std::vector<std::string> faults, backends;
  std::vector<LoadedConfig> configs;
  const CaseSpec* first = nullptr;
  for (const CaseSpec& spec : cases) {
    if (spec.external()) continue;
    try {
      LoadedConfig config = load(request, compare::merged(request.overrides, spec.overrides));
      find_backend(config.run.parallel_backend,
                   search_dirs(SearchSettings::current(config.run.backend_path)));
      if (first != nullptr) {
        const std::string fault = compare::incomparable(*first, configs[0], spec, config);
        if (!fault.empty()) faults.push_back(fault);
      } else {
        first = &spec;
      }
      configs.push_back(std::move(config));
    } catch (const ConfigError& e) {
      faults.push_back("case '" + spec.name + "': " + e.what());
    } catch (const Error& e) {
      backends.push_back("case '" + spec.name + "': " + e.what());
    }
  }
  if (backends.empty() && faults.empty()) return configs;
  backends.insert(backends.end(), faults.begin(), faults.end());
  throw Stop{faults.size() == backends.size() ? kExitUsage : kExitPlugin, join(backends, "\n")};
}

// Returns the largest number of ranks of any case that is known before the runs.
int most_ranks(const std::vector<CaseSpec>& cases, const std::vector<LoadedConfig>& configs) {
  int most = 1;
  for (const CaseSpec& spec : cases) most = std::max(most, spec.nproc.value_or(1));
  for (const LoadedConfig& config : configs) most = std::max(most, config.run.degrees.product());
  return most;
}

std::optional<compare::Level> level_of(const std::string& name) {
  if (name.empty()) return std::nullopt;
  const auto level = compare::level_by_name(name);
  if (level) return level;
  throw Stop{kExitUsage, "--level " + name + "; allowed: L0, L1, L2"};
}

compare::Plan make_plan(const Request& request) {
  compare::Plan plan;
  plan.program = std::filesystem::read_symlink("/proc/self/exe");
  plan.config = request.config;
  plan.overrides = request.overrides;
  plan.level = level_of(request.level);
  plan.cases = all_cases(request);
  const std::vector<LoadedConfig> configs = check_cases(request, plan.cases);
  const LoadedConfig config = configs.empty() ? load(request, request.overrides) : configs.front();
  const int ranks = most_ranks(plan.cases, configs);
  const bool external = std::any_of(
      plan.cases.begin(), plan.cases.end(), [](const CaseSpec& c) { return c.external(); });
  if (ranks > 1 || external) plan.reference = single_process(request, plan.cases);
  if (plan.cases.size() + (plan.reference ? 1 : 0) < 2) {
    throw Stop{
        kExitUsage,
        "one case with one rank has nothing to be compared with; name two --backends, or add a "
        "--case"};
  }
  plan.steps = request.steps.value_or(config.run.train.steps);
  if (plan.steps < 1)
    throw Stop{kExitUsage, "train.steps = 0: there is nothing to compare; allowed: 1 or more"};
  plan.repeats = request.repeats;
  // Without eval.path, a part of the training data would be held out.
  if (!config.run.eval.path.empty())
    plan.without_evaluation.push_back(config.run.data.order == "megatron" ? "data.split=[1]"
                                                                          : "data.holdout=0");
  plan.timeout = std::chrono::seconds(request.timeout);
  plan.tokens_per_step = config.run.train.global_batch * config.run.data.seq_len;
  plan.threads = threads_per_rank(usable_cores(), ranks);
  if (external) plan.external_json = external_json(config, plan.steps);
  plan.folder = std::filesystem::absolute(free_run_folder(config.run.run_dir + "-compare"));
  return plan;
}

std::string colour(const std::string& text, const char* code, bool on) {
  return on ? std::string("\033[") + code + "m" + text + "\033[0m" : text;
}

void print_table(const Comparison& comparison) {
  Table table(compare::table_header());
  for (const auto& row : compare::table_rows(comparison)) table.add(row);
  std::fputs(table.text().c_str(), stdout);
}

void print_result(const Request& request, const Comparison& comparison, int exit_code) {
  if (request.format == "json") {
    std::fputs(compare::to_json(comparison, request.words, exit_code).c_str(), stdout);
    return;
  }
  if (request.format == "md") std::fputs(compare::to_markdown(comparison).c_str(), stdout);
  if (request.format == "csv") std::fputs(compare::to_csv(comparison).c_str(), stdout);
  if (request.format == "table") print_table(comparison);
}

// Prints to stderr the details that do not fit into the table.
void print_details(const Comparison& comparison) {
  const bool bright = ::isatty(STDERR_FILENO) == 1 && wants_colour();
  for (const std::string& text : compare::problems(comparison))
    std::fprintf(stderr, "%s\n", colour(text, "31", bright).c_str());
  for (const compare::GateResult& gate : comparison.gates) {
    const std::string text = compare::result_text(gate);
    std::fprintf(stderr, "%s\n", gate.passed ? text.c_str() : colour(text, "31", bright).c_str());
  }
  for (const auto& lines : {compare::remarks(comparison), compare::recommendation_text(comparison)})
    for (const std::string& text : lines) print_message(text);
}

int exit_code_of(const Comparison& comparison) {
  const auto& cases = comparison.cases;
  const bool differs = std::any_of(cases.begin(), cases.end(), [](const compare::CaseResult& c) {
    return c.failure.empty() && !c.passed();
  });
  const bool gates_passed = std::all_of(comparison.gates.begin(),
                                        comparison.gates.end(),
                                        [](const compare::GateResult& g) { return g.passed; });
  if (differs || !gates_passed) return kExitGate;
  const auto failed = [](const compare::CaseResult& c) { return !c.failure.empty(); };
  const bool all_ran = std::none_of(cases.begin(), cases.end(), failed) &&
                       (!comparison.reference || !failed(*comparison.reference));
  return all_ran ? kExitOk : kExitFailed;
}

int run(const Request& request) {
  std::vector<compare::Gate> gates;
  for (const std::string& text : request.gates) gates.push_back(compare::parse_gate(text));
  const compare::Plan plan = make_plan(request);
  require_writable("-o", request.report);
  require_writable("--json-file", request.json_file);
  make_folders(plan.folder);
  compare::catch_interrupts();
  print_message(concat(plan.cases.size(),
                       plan.cases.size() == 1 ? " case, " : " cases, ",
                       plan.steps,
                       plan.steps == 1 ? " step, " : " steps, ",
                       plan.repeats,
                       plan.repeats == 1 ? " repeat, " : " repeats, ",
                       plan.threads,
                       plan.threads == 1 ? " thread" : " threads",
                       " per rank; the runs are in ",
                       plan.folder));
  Comparison comparison = compare::run_comparison(plan, print_message);
  for (const compare::Gate& gate : gates) {
    for (compare::GateResult& result : compare::measure(gate, comparison))
      comparison.gates.push_back(std::move(result));
  }
  const int code = exit_code_of(comparison);
  print_result(request, comparison, code);
  print_details(comparison);
  if (!request.json_file.empty())
    write_output(request.json_file, compare::to_json(comparison, request.words, code));
  if (!request.report.empty())
    write_output(request.report, compare::to_html(comparison, request.words));
  return code;
}

int64_t count(const std::string& flag, const std::string& text) {
  int64_t value = 0;
  const char* end = text.data() + text.size();
  const auto [at, error] = std::from_chars(text.data(), end, value);
  if (error == std::errc() && at == end && value >= 1 && value <= 1'000'000) return value;
  throw Stop{kExitUsage, flag + " " + text + ": allowed: a whole number, 1 to 1000000"};
}

// The numeric options of the command line, kept as text so that count() can check them.
struct Numbers {
  std::string nproc, steps, repeats = "3", timeout = "600";

  void into(Request& request) const {
    if (!nproc.empty()) request.nproc = count("--nproc", nproc);
    if (!steps.empty()) request.steps = count("--steps", steps);
    request.repeats = count("--repeats", repeats);
    request.timeout = count("--timeout", timeout);
  }
};

void add_options(CLI::App& app, Request& request, Numbers& text) {
  app.add_option("CONFIG", request.config, "run file (TOML)")->required();
  app.add_option("KEY=VALUE", request.overrides, "overrides of the run file for all cases");
  app.add_option("--backends", request.backends, "backends to compare, one case for each")
      ->type_name("A,B");
  app.add_option(
         "--case", request.cases, "a case with overrides of its own; nproc=N sets its ranks")
      ->type_name("NAME:KEY=VALUE,...")
      ->expected(1)
      ->allow_extra_args(false)  // the next word is KEY=VALUE
      ->take_all();
  app.add_option("--external", request.externals, "a case that an external command runs")
      ->type_name("NAME=COMMAND")
      ->expected(1)
      ->allow_extra_args(false)  // the next word is KEY=VALUE
      ->take_all();
  app.add_option("--nproc", text.nproc, "number of ranks of every case")->type_name("N");
  app.add_option("--steps", text.steps, "steps of every run; default: train.steps")->type_name("N");
  app.add_option(
         "--repeats", text.repeats, "runs of every case, in turn with the other cases; default: 3")
      ->type_name("N");
  app.add_option("--timeout", text.timeout, "time limit of a run in seconds; default: 600")
      ->type_name("N");
  app.add_option(
         "--level",
         request.level,
         "level that every case must reach: L0 (equal bits), L1 (fp32), L2 (bf16); default: by "
         "precision")
      ->type_name("L");
  app.add_option(
         "--gate", request.gates, "a condition for every case, such as tps>=0.95 or loss<=1e-6")
      ->type_name("EXPR")
      ->expected(1)
      ->allow_extra_args(false)  // the next word is KEY=VALUE
      ->take_all();
  app.add_option("--format", request.format, "format of the output: table, json, csv or md")
      ->check(CLI::IsMember({"table", "json", "csv", "md"}));
  app.add_option("-o", request.report, "write a report with plots to this HTML file")
      ->type_name("FILE");
  app.add_option(
         "--json-file", request.json_file, "write all results to this file, for other programs")
      ->type_name("FILE");
}

}  // namespace

int compare_command(const std::vector<std::string>& args) {
  CLI::App app("Runs the same job with several backends and checks whether their results agree.",
               "yoke compare");
  Request request;
  Numbers numbers;
  add_options(app, request, numbers);
  request.words = "yoke compare";
  for (const std::string& word : args) request.words += " " + shell_word(word);

  return run_command(app, args, [&]() -> int {
    try {
      if (app.count("--backends") > 0 && request.backends.empty())
        throw Stop{kExitUsage, "--backends is empty; allowed: names of backends, such as A,B"};
      numbers.into(request);
      return run(request);
    } catch (const Stop& stop) {
      print_message(stop.text);
      return stop.exit_code;
    } catch (const Error& e) {
      if (e.code() == YOKE_CANCELLED && compare::interrupted_by() != 0) {
        print_message("interrupted, so there is no result");
        return 128 + compare::interrupted_by();
      }
      print_message(e.what());
      const bool usage = e.code() == YOKE_INVALID_ARGUMENT || e.code() == YOKE_FAILED_PRECONDITION;
      return usage ? kExitUsage : kExitFailed;
    }
  });
}

}  // namespace yoke
