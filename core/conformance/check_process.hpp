// Runs checks of a backend: static ones here, every other one in a process of its own. No LibTorch.
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
  std::string text;  // failed: what; passed: what is worth knowing; not run: why
  double seconds = 0;
};

struct CheckRun {
  std::string path;    // of the backend, absolute
  std::string worker;  // yoke-worker
  int32_t nproc = 4;
  std::chrono::seconds timeout{60};  // of one check; five times as much for a deep one
  std::vector<const conformance::Check*> checks;
  std::function<void(const CheckOutcome&)> done{};  // told as they end; any thread, one at a time
};

// Every outcome, in the order of `checks`. As many processes at once as there are cores. If the
// file could not be loaded safely, nothing is loaded: the others are not run, and say which check
// failed. Throws Error(INTERNAL) if a process cannot be started, CANCELLED after a signal.
std::vector<CheckOutcome> run_checks(const CheckRun& run);

}  // namespace yoke
