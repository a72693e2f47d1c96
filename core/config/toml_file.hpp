// Reads TOML into a flat list of entries. Only toml_file.cpp includes the TOML library, which is
// slow to compile.
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

// One [[compare.case]] table. `yoke compare` reads it; it is not a part of the run's configuration.
struct TomlCase {
  std::vector<TomlEntry> entries;
  int line = 0;
};

struct TomlFile {
  std::vector<TomlEntry> entries;       // entries in the order of the file
  std::vector<TomlEntry> empty_tables;  // table headers without a key below them; value unused
  std::vector<TomlCase> compare_cases;
  std::string fault;  // why the file cannot be read or parsed, with file and line; "" = no error
};

// Reads and parses a regular file. Does not throw: an error is stored in `fault`, and everything
// else is empty then.
TomlFile parse_toml_file(const std::string& path);

// Parses one value as it is written to the right of "=". Returns nothing if it is not TOML.
std::optional<Value> parse_toml_value(const std::string& text);

}  // namespace yoke
