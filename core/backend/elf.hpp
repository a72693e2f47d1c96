// A look at a shared library as a file: nothing of it is executed. No LibTorch.
#pragma once

#include <string>

#include "sdk/conformance/library_file.hpp"

namespace yoke {

// What a file says about itself. `problem` is empty if this process could load it and it exports
// the entry symbol of our ABI; else one sentence, and `fix` one line.
struct ElfLook {
  std::string problem;
  std::string fix;
  int abi_major = 0;  // of the exported parallel_backend_entry_vN; 0 = none found
};

// Never throws for what the file contains; a file that cannot be read is a problem too.
ElfLook look_at_library(const std::string& path);

// The same look and what else the file says: symbols, libraries, flags. Owner and mode are left
// out.
conformance::LibraryFile read_library_file(const std::string& path);

}  // namespace yoke
