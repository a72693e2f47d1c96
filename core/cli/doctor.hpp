// yoke doctor: checks whether this machine has everything that a run needs.
#pragma once

#include <string>
#include <vector>

namespace yoke {

// Runs the command. Returns 1 if there is a problem, and 0 if there are at most warnings; 2 for
// wrong words.
int doctor_command(const std::vector<std::string>& args);

}  // namespace yoke
