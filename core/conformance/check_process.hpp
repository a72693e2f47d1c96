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
// `checks`. If a check of the file shows that loading it is unsafe, the file is not loaded: the
// remaining checks are kNotRun, and their text names that check. Throws Error: INTERNAL if a
// process cannot be started, CANCELLED after a signal.
std::vector<CheckOutcome> run_checks(const CheckRun& run);

}  // namespace yoke
