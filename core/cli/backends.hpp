// yoke backends list | info NAME | path
#pragma once

#include <string>
#include <vector>

namespace yoke {

// args: the words after `backends`. Returns the exit code; prints everything itself.
int backends_command(const std::vector<std::string>& args);

}  // namespace yoke
