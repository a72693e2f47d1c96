// The keys of a run file: one table from which parsing, listing, variables and messages all come.
#pragma once

#include <array>
#include <cstdint>
#include <limits>
#include <optional>
#include <string>
#include <string_view>
#include <variant>
#include <vector>

#include "core/config/run_config.hpp"
#include "core/config/value.hpp"

namespace yoke {

// Where a key's value lives in a RunConfig; its kind is the key's type.
using Field = std::variant<std::string*,
                           int64_t*,
                           uint64_t*,
                           double*,
                           bool*,
                           std::optional<int>*,
                           std::optional<int64_t>*,
                           std::optional<bool>*,
                           std::optional<double>*,
                           std::optional<std::string>*,
                           std::array<double, 2>*,
                           std::optional<std::array<int64_t, 2>>*,
                           std::vector<int64_t>*,
                           std::vector<std::string>*>;

// The contract has 32 bits for counts.
inline constexpr int64_t kMaxCount = 2147483647;

// Of a number. The bounds are inclusive unless open.
struct Range {
  double min = -std::numeric_limits<double>::infinity();
  double max = std::numeric_limits<double>::infinity();
  bool open_min = false, open_max = false;

  bool holds(double value) const;
  std::string text() const;  // "1 or more", "above 0", "at least 0 and below 1"
};

enum KeyFlag : uint32_t {
  kRequired = 1,     // has no default
  kNotEmpty = 2,     // a text of at least one character
  kZeroIsUnset = 4,  // 0 in the RunConfig means that nobody gave it
  kFree = 8,         // may differ when a run is resumed
  kNoVariable = 16,  // cannot be set by a YOKE_* variable
};

struct Key {
  std::string_view name;
  Field (*field)(RunConfig&);
  Range range;
  std::string_view choices;  // "a|b"; empty = any
  uint32_t flags;
  std::string_view doc;

  bool is(KeyFlag flag) const { return (flags & flag) != 0; }
};

const std::vector<Key>& schema();
const Key* find_key(std::string_view name);
std::vector<std::string> key_names();
bool is_table(std::string_view name);  // "train"

// "int", "float", "bool", "string", "two floats", "two ints", "ints", "strings".
std::string type_name(const Key& key);
// "adamw, sgd", "1 or more", "any".
std::string allowed(const Key& key);
std::vector<std::string> choices(const Key& key);

// The value in `config`; nothing if it is unset.
std::optional<Value> read_key(const Key& key, const RunConfig& config);
// Puts a value that check_key accepts into `config`.
void write_key(const Key& key, const Value& value, RunConfig& config);
// What is wrong with `value` for this key ("...; allowed: ..."); "" = nothing.
std::string check_key(const Key& key, const Value& value);

// A value from the command line or a variable, where strings need no quotes.
Value loose_value(const Key& key, const std::string& text);

// The whole table as a JSON list: key, type, required, default, allowed, variable, doc.
std::string schema_json();

// Later releases delete rows here. Not built yet, hence refused by name: the reason, or "".
std::string planned(std::string_view name, const Value& value);

}  // namespace yoke
