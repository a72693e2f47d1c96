// yoke train CONFIG [key=value ...] [--nproc N] [--virtual N]
#pragma once

#include <string>
#include <vector>

namespace yoke {

// args: the words after `train`. Returns the exit code; prints everything itself.
int train_command(const std::vector<std::string>& args);

}  // namespace yoke
