// yoke compare CONFIG [KEY=VALUE ...] [--backends A,B] [--case ...] ...
#pragma once

#include <string>
#include <vector>

namespace yoke {

// Runs the command. `args` are the words after `compare`. Prints results and errors itself, and
// returns the exit code (exit_code.hpp): 4 if a case differs or a --gate
// condition is not met.
int compare_command(const std::vector<std::string>& args);

}  // namespace yoke
