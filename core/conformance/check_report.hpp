// What checks found, for programs.
#pragma once

#include <string>
#include <vector>

#include "core/conformance/check_process.hpp"

namespace yoke {

const char* status_name(const CheckOutcome& outcome);  // "passed", "failed", "not run"

// {"backend": ..., "passed": 1, "failed": 0, "not_run": 0, "checks": [{"id", "level", "title",
// "status", "text", "seconds", and if it failed "at_fault", "fix"}]}
std::string check_json(const std::string& path, const std::vector<CheckOutcome>& outcomes);
std::string check_junit(const std::string& path, const std::vector<CheckOutcome>& outcomes);

}  // namespace yoke
