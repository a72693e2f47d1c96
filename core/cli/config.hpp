// yoke config show CONFIG [KEY=VALUE ...] | schema | import FILE
#pragma once

#include <string>
#include <vector>

namespace yoke {

// Runs the command. `args` are the words after `config`. Prints results and errors itself, and
// returns the exit code (exit_code.hpp).
int config_command(const std::vector<std::string>& args);

}  // namespace yoke
