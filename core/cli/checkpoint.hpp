// yoke checkpoint ls | verify | export
#pragma once

#include <string>
#include <vector>

namespace yoke {

// args: the words after `checkpoint`. Returns the exit code; prints everything itself.
int checkpoint_command(const std::vector<std::string>& args);

}  // namespace yoke
