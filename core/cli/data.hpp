// yoke data inspect FILE
#pragma once

#include <string>
#include <vector>

namespace yoke {

// args: the words after `data`. Returns the exit code; prints everything itself.
int data_command(const std::vector<std::string>& args);

}  // namespace yoke
