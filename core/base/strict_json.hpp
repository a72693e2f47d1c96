// JSON that other programs wrote.
#pragma once

#include <nlohmann/json_fwd.hpp>
#include <string>

namespace yoke {

// The object that `text` is. DATA_LOSS beginning with `where` if it is none, if a key stands twice
// in an object (parsers differ in which one counts), or if it is nested deeper than 32 levels.
nlohmann::json parse_json_object(const std::string& text, const std::string& where);

}  // namespace yoke
