// What must hold of a backend's file before anything of it runs. No LibTorch.
#pragma once

#include <string>

namespace yoke {

// Exists, is safe (owner, mode), is a library for this machine and exports our entry symbol. Throws
// Error with the reason; callers exit with 3.
void check_library_file(const std::string& path);

}  // namespace yoke
