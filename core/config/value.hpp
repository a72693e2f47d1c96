// A value of a run file, and how it is written.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <variant>
#include <vector>

namespace yoke {

// TOML knows more than a run file needs: a date, a table inside a list.
struct ForeignValue {
  std::string kind;  // "a date"
  std::string text;
  bool operator==(const ForeignValue&) const = default;
};

struct Value {
  std::variant<bool, int64_t, double, std::string, std::vector<Value>, ForeignValue> data;
  bool operator==(const Value&) const = default;
};

// As in a run file: 300, 3e-4, true, "a \"text\"", [0.9, 0.95]. Reads back as the same value.
std::string to_text(const Value& value);
std::string to_text(double value);  // shortest that restores the double
std::string toml_string(std::string_view text);

// False for a list and for a ForeignValue.
bool is_scalar(const Value& value);

// "an integer", "a string" ...
std::string kind_name(const Value& value);

// Valid UTF-8 without NUL: can stand in a run file and be a path.
bool is_clean_text(std::string_view text);

}  // namespace yoke
