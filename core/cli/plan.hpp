// yoke plan CONFIG [KEY=VALUE ...] [--world N] [--schedule] [--svg FILE] [--json]
#pragma once

#include <string>
#include <vector>

namespace yoke {

// Runs the command. `args` are the words after `plan`. Prints results and errors itself, and
// returns the exit code (exit_code.hpp).
int plan_command(const std::vector<std::string>& args);

}  // namespace yoke
