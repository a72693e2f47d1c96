// Reads the layers of a configuration into one list of assignments. Nothing here depends on the
// type or the range of a key; config.cpp applies the schema afterwards.
#pragma once

#include <string>
#include <vector>

#include "core/config/config.hpp"
#include "core/config/value.hpp"

namespace yoke {

// One assignment in one layer.
struct Setting {
  enum Layer { kOtherConfig, kFile, kVariable, kCommandLine };
  std::string key;  // "train.steps"
  Layer layer = kFile;
  std::string origin;    // "run.toml:3", "YOKE_TRAIN_STEPS", "command line" or "ds.json: steps"
  Value value;           // typed value, if it comes from the file
  std::string text;      // text as given, if it does not come from the file
  std::string folder{};  // folder of the run file, if it comes from the file; "" = the current one

  // Returns true for the layers whose strings need no quotes: `data.path=text.txt`.
  bool loose() const { return layer != kFile; }
  std::string table() const { return key.substr(0, key.find('.')); }  // "train"
};

struct Settings {
  std::vector<Setting> all;           // assignments of all layers, in the order added
  std::vector<Setting> empty_tables;  // table headers of the file without a key below them
  std::vector<std::string> faults;    // errors of the layers themselves, such as a syntax error
  bool file_is_known = true;          // false if the file could not be read or parsed

  // Returns the assignment of the highest layer, or NULL if there is none.
  const Setting* winner(const std::string& key) const;
};

// Adds the run file. If it cannot be read or parsed, adds an error.
void add_file(const std::string& path, Settings& settings);

// Adds the variables that name a key, or an option of one of `backends`. A variable that looks like
// a misspelt key is an error; any other YOKE_* variable is ignored. An empty variable counts as
// unset.
void add_variables(const Environment& environment,
                   const std::vector<std::string>& backends,
                   Settings& settings);

// Adds the "key=value" words of the command line.
void add_command_line(const std::vector<std::string>& overrides, Settings& settings);

}  // namespace yoke
