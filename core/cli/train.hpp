// yoke train CONFIG [KEY=VALUE ...] [--nproc N] [--virtual N]
#pragma once

#include <string>
#include <vector>

namespace yoke {

// Runs the command. `args` are the words after `train`. Prints results and errors itself, and
// returns the exit code (exit_code.hpp).
int train_command(const std::vector<std::string>& args);

}  // namespace yoke
