// yoke doctor: is everything here that a run needs?
#pragma once

#include <string>
#include <vector>

namespace yoke {

// Returns 1 if something is broken, 0 if there is nothing, or only something to think about.
int doctor_command(const std::vector<std::string>& args);

}  // namespace yoke
