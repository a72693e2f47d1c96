// Examines a shared library by reading its file; none of its code runs. No LibTorch.
#pragma once

#include <string>
#include <vector>

namespace yoke {

// The result of examining a file that may be a backend.
struct ElfLook {
  std::string problem;  // why it cannot be a backend: not ELF, no entry symbol, ...; "" = none
  std::string fix;      // one line: what the user can do about it
  int abi_major = 0;    // N of the exported symbol parallel_backend_entry_vN; 0 = none
};

// The parts of a shared library that the conformance checks examine.
struct ElfContents {
  std::vector<std::string> exported;   // defined dynamic symbols
  std::vector<std::string> undefined;  // symbols that other libraries must define, except weak ones
  std::vector<std::string> needed;     // DT_NEEDED
  std::vector<std::string> run_path;   // DT_RUNPATH or DT_RPATH, split at ':'
  std::vector<std::string> versions;   // versions of needed symbols: "GLIBC_2.34"
  bool text_relocations = false;
  bool executable_stack = false;
};

// Reads the headers and the dynamic symbols. Does not throw for anything that the file contains; a
// file that cannot be read is reported as a `problem` as well. Thread-safe.
ElfLook look_at_library(const std::string& path);

// Does the same and, if there is no problem, also fills `contents`.
ElfLook look_at_library(const std::string& path, ElfContents& contents);

}  // namespace yoke
