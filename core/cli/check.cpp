#include "core/cli/check.hpp"

#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <filesystem>
#include <map>

#include "core/backend/search.hpp"
#include "core/base/exit_code.hpp"
#include "core/cli/command.hpp"
#include "core/cli/output_file.hpp"
#include "core/cli/start_ranks.hpp"
#include "core/cli/stop.hpp"
#include "core/cli/table.hpp"
#include "core/cli/worker_program.hpp"
#include "core/compare/case_process.hpp"
#include "core/conformance/check_report.hpp"
#include "core/conformance/optimisation.hpp"
#include "core/conformance/root_causes.hpp"
#include "yoke/error.hpp"
#include "yoke/nearest.hpp"
#include "yoke/text.hpp"

namespace yoke {
namespace {

using conformance::Check;

constexpr const char* kLevels = "SLCNK";

// Returns the checks that --only and --deep select. Throws Error(INVALID_ARGUMENT).
std::vector<const Check*> chosen(const CheckRequest& request) {
  std::vector<std::string> known;
  for (const Check& c : conformance::checks()) known.emplace_back(c.id);
  for (const std::string& word : request.only) {
    const bool level = word.size() == 1 && std::string(kLevels).find(word) != std::string::npos;
    if (level || conformance::find_check(word) != nullptr) continue;
    throw Error(YOKE_INVALID_ARGUMENT,
                "--only " + word + ": no such check; allowed: a level (S, L, C, N, K) or an id" +
                    did_you_mean(word, known));
  }
  std::vector<const Check*> picked;
  for (const Check& c : conformance::checks()) {
    const bool named = std::any_of(request.only.begin(), request.only.end(), [&](const auto& word) {
      return word == c.id || (word.size() == 1 && word[0] == c.id[0]);
    });
    const bool by_id =
        std::find(request.only.begin(), request.only.end(), c.id) != request.only.end();
    if ((request.only.empty() || named) && (!c.deep || request.deep || by_id)) picked.push_back(&c);
  }
  return picked;
}

// Returns the library file that a name or a path refers to. Unlike parallel_backend in a run file,
// the path may be relative, because it is not stored.
std::string library_of(const std::string& backend) {
  std::error_code error;
  if (is_backend_name(backend))
    return find_backend(backend, search_dirs(SearchSettings::current()));
  const std::string path = std::filesystem::absolute(backend, error).lexically_normal().string();
  if (std::filesystem::is_regular_file(path, error)) return path;
  throw Error(YOKE_NOT_FOUND,
              backend +
                  (std::filesystem::exists(path, error) ? " is not a file" : " does not exist") +
                  "; give the .so file of a backend, or a name from: yoke backends list");
}

// ---- Output ----

int show_list(const CheckRequest& request) {
  if (request.format == "md") {
    std::fputs(conformance::checks_as_markdown().c_str(), stdout);
    return kExitOk;
  }
  Table table({"check", "level", "holds", "deep"});
  for (const Check& c : conformance::checks())
    table.add({c.id, conformance::level_name(c.id[0]), c.title, c.deep ? "yes" : ""});
  std::fputs(table.text().c_str(), stdout);
  return kExitOk;
}

std::string note_of(const CheckOutcome& outcome) {
  if (outcome.status != CheckOutcome::kFailed) return outcome.text;
  return outcome.follows.empty() ? "" : "follows from " + outcome.follows;
}

// Returns a row for each check, except for those that were not run because another one failed:
// after a file that does not load, these are almost all. A line gives their number.
std::string outcomes_table(const std::vector<CheckOutcome>& outcomes) {
  Table table({"check", "", "seconds", "holds", ""});
  std::map<std::string, int> left_out;  // number of checks, by the check that failed
  for (const CheckOutcome& o : outcomes) {
    if (o.status == CheckOutcome::kNotRun && !o.follows.empty()) {
      ++left_out[o.follows];
      continue;
    }
    table.add({o.check->id,
               o.status == CheckOutcome::kPassed ? "ok" : status_name(o),
               o.seconds > 0 ? string_printf("%.1f", o.seconds) : "",
               o.check->title,
               note_of(o)});
  }
  std::string text = table.text();
  for (const auto& [failed, count] : left_out) {
    const char* were = count == 1 ? " check was" : " checks were";
    text += concat(count, were, " not run, because ", failed, " failed\n");
  }
  return text;
}

// Describes the failures that do not follow from others.
std::string failures_text(const std::vector<CheckOutcome>& outcomes) {
  constexpr size_t kFrames = 8;
  std::string text;
  for (const CheckOutcome& o : outcomes) {
    if (o.status != CheckOutcome::kFailed || !o.follows.empty()) continue;
    text += concat("\n", o.check->id, " failed: ", o.text, "\n");
    for (size_t i = 0; i < std::min(kFrames, o.backtrace.size()); ++i)
      text += concat(i == 0 ? "  backtrace " : "            ", o.backtrace[i], "\n");
    text += concat("  at fault  ", conformance::fault_name(o.check->fault), "\n");
    text += concat("  fix       ", o.advice(), "\n");
    const std::string followers = followers_text(outcomes, o.check->id);
    const char* follow = followers.find(',') == std::string::npos ? " follows" : " follow";
    if (!followers.empty()) text += concat("  ", followers, follow, " from ", o.check->id, "\n");
  }
  return text;
}

// Returns a note if the library, a sound ELF file, was built without optimisation.
std::string optimisation_note(const std::vector<CheckOutcome>& outcomes, const std::string& path) {
  const bool loaded = std::none_of(outcomes.begin(), outcomes.end(), [](const CheckOutcome& o) {
    return o.status == CheckOutcome::kNotRun && !o.follows.empty();
  });
  if (!loaded || !looks_unoptimised(path)) return "";
  return "\nit is built without optimisation, so it will be slow: pass -DCMAKE_BUILD_TYPE=Release "
         "to "
         "cmake, or -O2 to the compiler\n";
}

std::string summary_text(const std::string& path,
                         const std::vector<CheckOutcome>& outcomes,
                         double seconds) {
  const auto count = [&](CheckOutcome::Status status) {
    return std::count_if(
        outcomes.begin(), outcomes.end(), [&](const auto& o) { return o.status == status; });
  };
  const auto not_run = count(CheckOutcome::kNotRun);
  const auto follow = std::count_if(outcomes.begin(), outcomes.end(), [](const auto& o) {
    return o.status == CheckOutcome::kFailed && !o.follows.empty();
  });
  return concat("\n",
                path,
                ": ",
                count(CheckOutcome::kPassed),
                " passed, ",
                count(CheckOutcome::kFailed),
                " failed",
                follow == 0 ? "" : concat(" (", follow, " of them follow from others)"),
                not_run == 0 ? "" : concat(", ", not_run, " not run"),
                string_printf(" in %.1f s\n", seconds));
}

// Shows how many checks are done, if stderr is a terminal.
void show_progress(size_t done, size_t all) {
  if (::isatty(STDERR_FILENO) == 0) return;
  std::fprintf(stderr, "\r%zu of %zu checks%s", done, all, done == all ? "\r\033[K" : "");
}

}  // namespace

CLI::App* add_check_command(CLI::App& backends, CheckRequest& request) {
  CLI::App* app = backends.add_subcommand("check", "run the conformance checks on a backend");
  app->add_option("PATH", request.backend, "name of a backend, or path of its .so file");
  app->add_flag("--deep", request.deep, "also run the checks that take seconds");
  app->add_option("--nproc", request.nproc, "largest number of ranks in a check")
      ->check(CLI::Range(1, 64))
      ->capture_default_str();
  app->add_option("--timeout", request.timeout, "time limit of one check in seconds")
      ->check(CLI::Range(1, 3600))
      ->capture_default_str();
  app->add_option(
         "--only", request.only, "ids (C4) or levels (N) of the checks to run; may be repeated")
      ->delimiter(',')
      ->allow_extra_args(false);
  app->add_option("--json-file", request.json_file, "write the results to this file as JSON");
  app->add_option("--junit", request.junit, "write the results to this file as JUnit XML");
  app->add_flag("--list", request.list, "list the checks instead of running them");
  app->add_option("--format", request.format, "format of --list: text or md")
      ->check(CLI::IsMember({"text", "md"}));
  return app;
}

int check_backend(const CheckRequest& request) {
  if (request.list) return show_list(request);
  CheckRun run;
  try {
    if (request.backend.empty()) throw Error(YOKE_INVALID_ARGUMENT, "PATH is missing");
    run.checks = chosen(request);
    require_writable("--json-file", request.json_file);
    require_writable("--junit", request.junit);
  } catch (const Error& e) {
    std::fprintf(stderr, "yoke backends check: %s; see: yoke backends check --help\n", e.what());
    return kExitUsage;
  } catch (const Stop& stop) {
    print_message(stop.text);
    return stop.exit_code;
  }
  run.path = library_of(request.backend);
  run.worker = find_worker("");
  run.nproc = request.nproc;
  run.timeout = std::chrono::seconds(request.timeout);
  size_t done = 0;
  run.done = [&](const CheckOutcome&) { show_progress(++done, run.checks.size()); };
  compare::catch_interrupts();
  const auto begin = std::chrono::steady_clock::now();
  std::vector<CheckOutcome> outcomes;
  try {
    outcomes = run_checks(run);
  } catch (const Error& e) {
    if (compare::interrupted_by() != 0) return 128 + compare::interrupted_by();
    throw;
  }
  const double seconds =
      std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
  const std::string unused = request.only.empty() ? unused_axes(outcomes, run.nproc) : "";
  const std::string text = outcomes_table(outcomes) + failures_text(outcomes) +
                           (unused.empty() ? "" : "\n" + unused + "\n") +
                           optimisation_note(outcomes, run.path) +
                           summary_text(run.path, outcomes, seconds);
  std::fputs(text.c_str(), stdout);
  write_output(request.json_file, check_json(run.path, outcomes));
  write_output(request.junit, check_junit(run.path, outcomes));
  return all_good(outcomes) && unused.empty() ? kExitOk : kExitFailed;
}

}  // namespace yoke
