// Compares the keys of another program's config with those that an import of it names.
#pragma once

#include <string>

#include "tests/cli/playground.hpp"

namespace yoke::testing {

// Expects that an import of `file`, a JSON or YAML file with this text, names every key of it, and
// no other. A key that is handled as a whole stands for the keys within it.
void expect_all_keys_named(const Playground& p, const std::string& file, const std::string& text);

}  // namespace yoke::testing
