// TOML text as a flat list. The only user of the TOML library is the .cpp.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "core/config/value.hpp"

namespace yoke {

struct TomlEntry {
  std::vector<std::string> key;  // {"train", "steps"}
  Value value;
  int line = 0;
  std::string dotted() const;  // "train.steps"
};

// One [[compare.case]]: not a part of the run, read by `yoke compare`.
struct TomlCase {
  std::vector<TomlEntry> entries;
  int line = 0;
};

struct TomlFile {
  std::vector<TomlEntry> entries;       // in the order of the file
  std::vector<TomlEntry> empty_tables;  // headers without a key below them; value unused
  std::vector<TomlCase> compare_cases;
  std::string fault;  // of the syntax, with its place; then the rest is empty
};

// Reads a regular file; what is wrong with the file or its syntax stands in fault.
TomlFile parse_toml_file(const std::string& path);

// One value as it would stand right of "="; nothing if it is not TOML.
std::optional<Value> parse_toml_value(const std::string& text);

}  // namespace yoke
