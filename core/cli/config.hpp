// yoke config show CONFIG [key=value ...] [--origin] [--json] | schema [--json]
#pragma once

#include <string>
#include <vector>

namespace yoke {

// args: the words after `config`. Returns the exit code; prints everything itself.
int config_command(const std::vector<std::string>& args);

}  // namespace yoke
