// A value of a run file, and its text form.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <variant>
#include <vector>

namespace yoke {

// A TOML value of a kind that no key accepts: a date, a time, or a table inside a list.
struct ForeignValue {
  std::string kind;  // "a date or time" or "a table"
  std::string text;
  bool operator==(const ForeignValue&) const = default;
};

struct Value {
  std::variant<bool, int64_t, double, std::string, std::vector<Value>, ForeignValue> data;
  bool operator==(const Value&) const = default;
};

// Returns the value as written in a run file: 300, 3e-4, true, "a \"text\"", [0.9, 0.95]. Parsing
// the text gives the same value.
std::string to_text(const Value& value);
// Returns the shortest text that parses to the same double.
std::string to_text(double value);
// Returns the text in quotes, with escapes.
std::string toml_string(std::string_view text);

// Returns false for a list and for a ForeignValue.
bool is_scalar(const Value& value);

// Returns "an integer", "a string" and so on, for messages.
std::string kind_name(const Value& value);

// Returns true for valid UTF-8 without a NUL character, which a run file and a path can hold.
bool is_clean_text(std::string_view text);

}  // namespace yoke
