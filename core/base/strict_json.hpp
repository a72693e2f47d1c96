// JSON that other programs wrote and that may be damaged or malicious.
#pragma once

#include <nlohmann/json_fwd.hpp>
#include <string>

namespace yoke {

// Parses `text` as one JSON object. Throws Error(DATA_LOSS), with a text that starts with `where`,
// if it is not a JSON object, if it is nested deeper than 32 levels, or if an object has a key
// twice: parsers differ in which of the two values they keep. Thread-safe.
nlohmann::json parse_json_object(const std::string& text, const std::string& where);

}  // namespace yoke
