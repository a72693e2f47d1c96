// What a shared library says about itself as a file. Filled by the host, which reads ELF; the
// static checks judge it.
#pragma once

#include <string>
#include <vector>

namespace yoke::conformance {

struct LibraryFile {
  std::string path;
  std::string unsafe, unsafe_fix;  // owner and mode of the file and its folders; "" = safe
  // Why it can be no backend of this machine: not ELF, truncated, another machine. The fields below
  // are empty then.
  std::string unreadable, unreadable_fix;

  std::vector<std::string> exported;   // defined dynamic symbols
  std::vector<std::string> undefined;  // symbols that others must define
  std::vector<std::string> needed;     // DT_NEEDED
  std::vector<std::string> run_path;   // DT_RUNPATH or DT_RPATH, in parts
  std::vector<std::string> versions;   // of symbols of others: "GLIBC_2.34"
  bool text_relocations = false;
  bool executable_stack = false;
};

}  // namespace yoke::conformance
