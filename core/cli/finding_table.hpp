// How `yoke doctor` prints what it has found.
#pragma once

#include <vector>

#include "core/launch/machine_check.hpp"

namespace yoke {

// Prints one line per finding, and one more for what to try; or a JSON array.
void print_findings(const std::vector<MachineFinding>& findings, bool json);

// Returns 1 if there is a problem, 0 if there are at most warnings.
int exit_code_of(const std::vector<MachineFinding>& findings);

}  // namespace yoke
