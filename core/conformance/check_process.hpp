// Runs the conformance checks of a backend. Checks of the library's file run in this process, every
// other check in its own process. Does not need LibTorch.
#pragma once

#include <chrono>
#include <functional>
#include <string>
#include <vector>

#include "sdk/conformance/check.hpp"

namespace yoke {

struct CheckOutcome {
  enum Status { kPassed, kFailed, kNotRun };

  const conformance::Check* check = nullptr;
  Status status = kNotRun;
  std::string text;  // failed: the failure; passed: a note or ""; not run: why
  double seconds = 0;
  // If it failed: the check that examines the reason alone, see conformance::Cause; the advice that
  // replaces that of the check; the functions on the stack of a crash, innermost first.
  std::string root, fix;
  std::vector<std::string> backtrace;
  // Id of the failed check from which the failure follows, or because of which the check was not
  // run; "" = none. See root_causes.hpp.
  std::string follows;
  uint32_t axes_declared = 0, axes_run = 0;  // see conformance::Subject

  // Returns the advice for the author.
  const char* advice() const { return fix.empty() ? check->fix : fix.c_str(); }
};

struct CheckRun {
  std::string path;    // absolute path of the backend
  std::string worker;  // path of yoke-worker
  int32_t nproc = 4;
  std::chrono::seconds timeout{60};  // limit of one check; a deep check has five times as much
  std::vector<const conformance::Check*> checks;
  // Called with every outcome as soon as it is known; from any thread, one call at a time.
  std::function<void(const CheckOutcome&)> done{};
};

// Runs the checks, as many at once as there are cores, and returns their outcomes in the order of
// `checks`, with the failures that follow from others marked. If a check of the file shows that
// loading it is unsafe, the file is not loaded: the remaining checks are kNotRun, and their text
// names that check. Throws Error: INTERNAL if a process cannot be started, CANCELLED after a
// signal.
std::vector<CheckOutcome> run_checks(const CheckRun& run);

}  // namespace yoke
