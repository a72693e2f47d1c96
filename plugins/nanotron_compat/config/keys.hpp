// Every key of nanotron's YAML files and how it is handled: those of nanotron 0.4 and those of its
// repository up to April 2026. The code that reads a file, the options of a run file and
// plugins/nanotron_compat/KEYS.md all follow these tables. Everything here is constant and may be
// used by any thread.
//
// A name is the path of a key, such as "optimizer.zero_stage". Keys of a stage of data begin with
// "data_stages[]."; those below `data` in a file of 0.4 have the names of "data_stages[].data".
#pragma once

#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "sdk/compat/setting.hpp"

namespace yoke::nanotron_compat {

using Key = compat::Setting;

// Keys that share everything but their names. Their values are not read.
struct Group {
  compat::Handling handling;
  std::string_view why;
  std::span<const std::string_view> names;
};

std::span<const Key> honoured_keys();
std::span<const Key> run_keys();
std::span<const Key> refused_keys();
std::span<const Group> no_effect_groups();
std::span<const Group> inert_groups();

// Returns all keys of the tables above.
const std::vector<Key>& keys();
// Returns the row of a path, NULL if nanotron has no such key.
const Key* find_key(std::string_view path);
// Returns whether keys lie below a path.
bool is_section(std::string_view path);
// Returns the names of all keys and sections beside a path, for "did you mean".
std::vector<std::string> siblings(std::string_view path);
// Returns the name of an honoured key in [nanotron_compat] of a run file: the last word of its
// path.
std::string option_name(const Key& key);

}  // namespace yoke::nanotron_compat
