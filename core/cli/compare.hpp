// yoke compare
#pragma once

#include <string>
#include <vector>

namespace yoke {

int compare_command(const std::vector<std::string>& args);

}  // namespace yoke
