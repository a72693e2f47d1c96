// yoke backends list | info NAME | path | new NAME | check PATH
#pragma once

#include <string>
#include <vector>

namespace yoke {

// Runs the command. `args` are the words after `backends`. Prints results and errors itself, and
// returns the exit code (exit_code.hpp).
int backends_command(const std::vector<std::string>& args);

}  // namespace yoke
