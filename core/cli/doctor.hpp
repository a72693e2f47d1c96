// yoke doctor: checks whether this machine has everything that a run needs.
#pragma once

#include <string>
#include <vector>

namespace yoke {

// Runs the command. Returns 1 if there is a problem, 0 if there are at most warnings, and 2 for
// wrong arguments.
int doctor_command(const std::vector<std::string>& args);

}  // namespace yoke
