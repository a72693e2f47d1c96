// A look at a shared library as a file: nothing of it is executed. No LibTorch.
#pragma once

#include <string>
#include <vector>

namespace yoke {

// What a file says about itself. `problem` is empty if this process could load it and it exports
// the entry symbol of our ABI; else one sentence, and `fix` one line.
struct ElfLook {
  std::string problem;
  std::string fix;
  int abi_major = 0;  // of the exported parallel_backend_entry_vN; 0 = none found
};

// What else a shared library says about itself.
struct ElfContents {
  std::vector<std::string> exported;   // defined dynamic symbols
  std::vector<std::string> undefined;  // symbols that other libraries must define; no weak ones
  std::vector<std::string> needed;     // DT_NEEDED
  std::vector<std::string> run_path;   // DT_RUNPATH or DT_RPATH, split at ':'
  std::vector<std::string> versions;   // versions of needed symbols: "GLIBC_2.34"
  bool text_relocations = false;
  bool executable_stack = false;
};

// Never throws for what the file contains; a file that cannot be read is a problem too.
ElfLook look_at_library(const std::string& path);

// The same look. Fills `contents` as well, unless there is a problem.
ElfLook look_at_library(const std::string& path, ElfContents& contents);

}  // namespace yoke
