// The table of `yoke plan --layouts`.
#pragma once

#include <nlohmann/json_fwd.hpp>
#include <string>

namespace yoke {

// Returns the layouts that the worker has found (core/run/layouts.hpp) as a table, least memory
// first, and below it why the others are not possible. Layouts are written as overrides.
// Throws nlohmann::json::exception if it is not their JSON.
std::string layout_table(const nlohmann::ordered_json& layouts);

}  // namespace yoke
