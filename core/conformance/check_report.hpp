// The outcomes of checks in formats for programs.
#pragma once

#include <string>
#include <vector>

#include "core/conformance/check_process.hpp"

namespace yoke {

const char* status_name(const CheckOutcome& outcome);  // "passed", "failed", "not run"

// Returns {"backend": ..., "passed": 1, "failed": 0, "not_run": 0, "checks": [{"id", "level",
// "title", "status", "text", "seconds"}]}. A failed check also has "at_fault" and "fix", "follows"
// if it follows from another failure, and "backtrace" if it crashed.
std::string check_json(const std::string& path, const std::vector<CheckOutcome>& outcomes);
// Returns a JUnit test suite with one test case per check.
std::string check_junit(const std::string& path, const std::vector<CheckOutcome>& outcomes);

}  // namespace yoke
