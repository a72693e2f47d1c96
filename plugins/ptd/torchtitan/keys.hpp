// The keys of a torchtitan job file (*.toml) and how each is handled. The code that reads a file
// and plugins/ptd/TORCHTITAN.md follow these tables. Everything here is constant and may be used by
// any thread.
#pragma once

#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "sdk/compat/setting.hpp"

namespace yoke::ptd::torchtitan {

using Key = compat::Setting;

std::span<const Key> keys();
// Returns a key by its path, such as "training.seq_len", or NULL if torchtitan has none.
const Key* find_key(std::string_view path);
// Some versions of torchtitan name a key differently. Returns the path that the tables use for it:
// "float8.recipe_name" for "quantize.linear.float8.recipe_name".
std::string present_path(std::string_view path);
// Returns the names in the table of a path, for "did you mean".
std::vector<std::string> siblings(std::string_view path);

}  // namespace yoke::ptd::torchtitan
