// Checks a backend's file before any of its code runs. No LibTorch.
#pragma once

#include <string>

namespace yoke {

// Checks that the file exists, that its owner and mode are safe, that it is a library for this
// machine and that it exports our entry symbol. Throws Error with the reason (reject.hpp); callers
// exit with 3.
void check_library_file(const std::string& path);

}  // namespace yoke
