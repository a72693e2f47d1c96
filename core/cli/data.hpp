// yoke data inspect FILE, yoke data prepare FILE ...
#pragma once

#include <string>
#include <vector>

namespace yoke {

// Runs the command. `args` are the words after `data`. Prints results and errors itself, and
// returns the exit code (exit_code.hpp).
int data_command(const std::vector<std::string>& args);

}  // namespace yoke
