// Each check runs in its own process, so that a crash, a hang or leftover state of one check cannot
// affect the others. Before the library is loaded, its file is checked without running any of its
// code.
#include "core/conformance/check_process.hpp"

#include <algorithm>
#include <atomic>
#include <exception>
#include <filesystem>
#include <fstream>
#include <mutex>
#include <nlohmann/json.hpp>
#include <thread>

#include "core/backend/elf.hpp"
#include "core/backend/search.hpp"
#include "core/base/cores.hpp"
#include "core/compare/case_process.hpp"
#include "core/conformance/root_causes.hpp"
#include "yoke/text.hpp"

namespace yoke {
namespace {

namespace fs = std::filesystem;
using conformance::Check;

constexpr int kDeepFactor = 5;

// Checks of the library's file that must pass before it may be loaded.
constexpr const char* kGates[] = {"S1", "S2", "S3"};

CheckOutcome not_run(const Check& check, const std::string& gate) {
  CheckOutcome outcome;
  outcome.check = &check;
  outcome.text = gate + " failed";
  outcome.follows = gate;
  return outcome;
}

CheckOutcome run_static(const Check& check, const conformance::LibraryFile& file) {
  const std::string id = check.id;
  if (!file.unreadable.empty() && id != "S1" && id != "S2") return not_run(check, "S1");
  CheckOutcome outcome;
  outcome.check = &check;
  try {
    outcome.text = check.file(file);
    outcome.status = CheckOutcome::kPassed;
  } catch (const conformance::Failed& e) {
    outcome.text = e.what();
    outcome.status = CheckOutcome::kFailed;
  }
  return outcome;
}

// The report of the child process.
struct ChildReport {
  nlohmann::json result;               // null if the process died without one
  std::string where;                   // last reported place, e.g. "inside init"
  std::vector<std::string> backtrace;  // functions on the stack of a crash
};

ChildReport read_report(const std::string& path) {
  ChildReport report;
  std::ifstream in(path);
  for (std::string line; std::getline(in, line);) {
    if (line.starts_with("at ")) report.where = line.substr(3);
    if (line.starts_with("frame ")) report.backtrace.push_back(line.substr(6));
    if (line.starts_with("{")) report.result = nlohmann::json::parse(line, nullptr, false);
  }
  return report;
}

// Describes how a process without a result ended.
std::string death(const compare::CommandResult& result, const std::string& where, int limit) {
  const std::string place = where.empty() ? "before the first call of the backend" : where;
  if (result.timed_out) return concat("it did not return within ", limit, " s, ", place);
  const std::string how = result.ending.signal != 0
                              ? "the process died of " + ending_text(result.ending)
                              : "the process was ended with " + ending_text(result.ending);
  std::string text = how + ", " + place;
  if (!result.last_lines.empty()) text += "; its last line of output: " + result.last_lines.back();
  return text;
}

// Returns the advice for a process that died, or "" for that of the check.
std::string death_advice(const compare::CommandResult& result,
                         const ChildReport& report,
                         const std::string& path) {
  if (result.timed_out) return "find out where it waits: gdb -p, while it hangs";
  const std::string name = fs::path(path).filename().string();
  for (const std::string& frame : report.backtrace) {
    if (!frame.starts_with(name + "+")) continue;
    const std::string offset = frame.substr(name.size() + 1, frame.find(' ') - name.size() - 1);
    return "addr2line -pifCe " + path + " " + offset + " names the line, if it is built with -g";
  }
  return "";
}

void read_result(const nlohmann::json& result, CheckOutcome& outcome) {
  const std::string status = result["status"];
  outcome.status = status == "passed"    ? CheckOutcome::kPassed
                   : status == "not run" ? CheckOutcome::kNotRun
                                         : CheckOutcome::kFailed;
  outcome.text = result["text"];
  outcome.root = result.value("root", "");
  outcome.fix = result.value("fix", "");
  outcome.axes_declared = result.value("axes_declared", 0u);
  outcome.axes_run = result.value("axes_run", 0u);
}

CheckOutcome run_child(const CheckRun& run, const Check& check, const std::string& folder) {
  CheckOutcome outcome;
  outcome.check = &check;
  const std::string report_path = folder + "/" + check.id + ".report";
  std::ofstream(report_path).flush();  // creates the file; the child only appends
  const auto limit = run.timeout * (check.deep ? kDeepFactor : 1);
  const RankCommand command{{run.worker,
                             "--check",
                             check.id,
                             "--backend",
                             run.path,
                             "--nproc",
                             std::to_string(run.nproc),
                             "--report",
                             report_path},
                            {{"OMP_NUM_THREADS", "1"}}};
  const compare::CommandResult result =
      compare::run_command(command, folder + "/" + check.id + ".log", limit);
  outcome.seconds = result.seconds;
  const ChildReport report = read_report(report_path);
  if (result.ending.ok() && report.result.is_object()) {
    read_result(report.result, outcome);
  } else {
    outcome.status = CheckOutcome::kFailed;
    outcome.text = death(result, report.where, static_cast<int>(limit.count()));
    outcome.backtrace = report.backtrace;
    outcome.fix = death_advice(result, report, run.path);
  }
  return outcome;
}

class TempDir {
 public:
  TempDir() {
    path_ = (fs::temp_directory_path() / "yoke-check-XXXXXX").string();
    if (::mkdtemp(path_.data()) == nullptr)
      throw Error(YOKE_RESOURCE_EXHAUSTED, concat("no temporary folder: ", std::strerror(errno)));
  }
  ~TempDir() {
    std::error_code ignored;
    fs::remove_all(path_, ignored);
  }
  const std::string& path() const { return path_; }

 private:
  std::string path_;
};

conformance::LibraryFile inspect(const std::string& path) {
  ElfContents contents;
  const ElfLook look = look_at_library(path, contents);
  conformance::LibraryFile file;
  file.path = path;
  file.unreadable = look.problem;
  file.unreadable_fix = look.fix;
  file.exported = std::move(contents.exported);
  file.undefined = std::move(contents.undefined);
  file.needed = std::move(contents.needed);
  file.run_path = std::move(contents.run_path);
  file.versions = std::move(contents.versions);
  file.text_relocations = contents.text_relocations;
  file.executable_stack = contents.executable_stack;
  const Unsafe unsafe = unsafe_reason(path);
  file.unsafe = unsafe.reason;
  file.unsafe_fix = unsafe.fix;
  return file;
}

// Returns the first of kGates that fails, even if it was not requested; "" = the file may be
// loaded.
std::string failed_gate(const conformance::LibraryFile& file) {
  for (const char* id : kGates) {
    if (run_static(*conformance::find_check(id), file).status == CheckOutcome::kFailed) return id;
  }
  return "";
}

}  // namespace

std::vector<CheckOutcome> run_checks(const CheckRun& run) {
  std::vector<CheckOutcome> outcomes(run.checks.size());
  const conformance::LibraryFile file = inspect(run.path);
  const std::string gate = failed_gate(file);
  const TempDir folder;
  std::mutex mutex;
  std::exception_ptr failure;
  std::atomic<size_t> next{0};
  const auto work = [&] {
    for (size_t i; (i = next++) < run.checks.size();) {
      const Check& check = *run.checks[i];
      CheckOutcome& outcome = outcomes[i];
      try {
        if (compare::interrupted_by() != 0) throw Error(YOKE_CANCELLED, "interrupted");
        if (check.file != nullptr) {
          outcome = run_static(check, file);
        } else if (!gate.empty()) {
          outcome = not_run(check, gate);
        } else {
          outcome = run_child(run, check, folder.path());
        }
      } catch (...) {
        const std::lock_guard lock(mutex);
        if (!failure) failure = std::current_exception();
        return;
      }
      const std::lock_guard lock(mutex);
      if (run.done) run.done(outcome);
    }
  };
  std::vector<std::thread> workers;
  for (int i = 0; i < usable_cores(); ++i) workers.emplace_back(work);
  for (std::thread& t : workers) t.join();
  if (failure) std::rethrow_exception(failure);
  find_root_causes(outcomes);
  return outcomes;
}

}  // namespace yoke
