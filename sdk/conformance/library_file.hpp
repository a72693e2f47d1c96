// The contents of a shared library as a file. The host reads the ELF file and fills this struct,
// and the static checks examine it.
#pragma once

#include <string>
#include <vector>

namespace yoke::conformance {

struct LibraryFile {
  std::string path;
  std::string unsafe, unsafe_fix;  // problem with owner or mode of the file or a folder; "" = safe
  // The reason why the file cannot be a backend on this machine: it is not ELF, truncated, or built
  // for another machine. The fields below are empty in this case.
  std::string unreadable, unreadable_fix;

  std::vector<std::string> exported;   // defined dynamic symbols
  std::vector<std::string> undefined;  // symbols that other libraries must define
  std::vector<std::string> needed;     // DT_NEEDED
  std::vector<std::string> run_path;   // folders in DT_RUNPATH or DT_RPATH
  std::vector<std::string> versions;   // versions of undefined symbols, e.g. "GLIBC_2.34"
  bool text_relocations = false;
  bool executable_stack = false;
};

}  // namespace yoke::conformance
