// yoke checkpoint ls | verify | export
#pragma once

#include <string>
#include <vector>

namespace yoke {

// Runs the command. `args` are the words after `checkpoint`. Prints results and errors itself, and
// returns the exit code (exit_code.hpp).
int checkpoint_command(const std::vector<std::string>& args);

}  // namespace yoke
