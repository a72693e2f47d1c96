// Parses a TOML document into the list of its keys. This file does not use LibTorch.
#pragma once

#include <string>
#include <string_view>
#include <vector>

namespace yoke::compat {

struct TomlKey {
  std::string path;  // name, after those of its tables: "training.seq_len"
  // One text, or one for each entry of a list. Lists and tables in lists, dates and times are
  // "{...}".
  std::vector<std::string> values;
  bool is_list = false;
  int line = 0;  // line of the file; 1 is the first
};

// The exception that parse_toml throws.
struct TomlError {
  int line;
  std::string reason;
};

// Parses a document of at most 64 KiB. Returns its keys in the order of their lines; a table
// without keys is left out. Throws TomlError at the first error.
std::vector<TomlKey> parse_toml(std::string_view text);

}  // namespace yoke::compat
