// The layers of a configuration as one list of assignments, before the schema sees them.
#pragma once

#include <string>
#include <vector>

#include "core/config/config.hpp"
#include "core/config/value.hpp"

namespace yoke {

// One assignment of one layer.
struct Setting {
  enum Layer { kFile, kVariable, kCommandLine };
  std::string key;  // "train.steps"
  Layer layer = kFile;
  std::string origin;  // "run.toml:3", "YOKE_TRAIN_STEPS", "command line"
  Value value;         // of the file
  std::string text;    // of the other layers, as given: strings need no quotes

  bool loose() const { return layer != kFile; }
  std::string table() const { return key.substr(0, key.find('.')); }
};

struct Settings {
  std::vector<Setting> all;           // lowest layer first, in the order given
  std::vector<Setting> empty_tables;  // headers of the file without a key below them
  std::vector<std::string> faults;    // of the layers themselves
  bool file_is_known = true;          // false: its syntax is wrong, so nothing is known of it

  // The assignment that wins, or NULL.
  const Setting* winner(const std::string& key) const;
};

// The run file. An unreadable one is a fault.
void add_file(const std::string& path, Settings& settings);

// Variables that name a key or an option of one of `backends`. Those that look as if they should,
// and do not, are faults; other YOKE_* variables are not ours. An empty variable counts as not set.
void add_variables(const Environment& environment,
                   const std::vector<std::string>& backends,
                   Settings& settings);

// "key=value" words.
void add_command_line(const std::vector<std::string>& overrides, Settings& settings);

}  // namespace yoke
