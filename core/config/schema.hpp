// The keys of a run file. The parser, the messages, the variables and `yoke config schema` all use
// this one table. No LibTorch.
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

// A pointer to the field of a RunConfig that holds a key's value. Its type is the key's type.
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
                           std::vector<double>*,
                           std::vector<std::string>*>;

// The largest count that a key accepts, because the contract stores counts in 32 bits.
inline constexpr int64_t kMaxCount = 2147483647;

// The numbers that a key accepts. The bounds are inclusive unless they are open.
struct Range {
  double min = -std::numeric_limits<double>::infinity();
  double max = std::numeric_limits<double>::infinity();
  bool open_min = false, open_max = false;

  bool holds(double value) const;
  std::string text() const;  // "1 or more", "above 0" or "at least 0 and below 1"
};

enum KeyFlag : uint32_t {
  kRequired = 1,     // the RunConfig has no default
  kNotEmpty = 2,     // the text has at least one character
  kZeroIsUnset = 4,  // 0 in the RunConfig means that the key is unset
  kFree = 8,         // the value may change when a run is resumed
  kNoVariable = 16,  // no YOKE_* variable sets the key
  kPerRank = 32,     // the ranks of a run may have different values
  kOneOrMore = 64,   // a list of strings that may be written as one string
  // Older releases lack the key, so its default value is not part of the resume digest.
  kLater = 128,
  kTunable = 256,  // the value may change when a run is resumed, which changes the later steps
  kPath = 512,     // path, or list of paths, that a run file may give relative to itself
};

struct Key {
  std::string_view name;
  Field (*field)(RunConfig&);
  Range range;
  std::string_view choices;  // allowed words, "a|b"; empty = any text
  uint32_t flags;            // KeyFlag, combined with |
  std::string_view doc;      // one line for users

  bool is(KeyFlag flag) const { return (flags & flag) != 0; }
};

// All keys, in the order in which they are listed and written.
const std::vector<Key>& schema();
const Key* find_key(std::string_view name);  // NULL if there is no such key
std::vector<std::string> key_names();
bool is_table(std::string_view name);  // true for "train"

// Returns "int", "float", "bool", "string", "two floats", "two ints", "ints", "floats", "strings"
// or "string or strings".
std::string type_name(const Key& key);
// Returns the accepted values for a message: "adamw, sgd", "1 or more" or "any".
std::string allowed(const Key& key);
// Returns the allowed words; empty if the key accepts any text.
std::vector<std::string> choices(const Key& key);

// Returns the value that the key has if nothing sets it; nothing if it is unset then, or must be
// set. That of parallel_backend is the default backend of the build.
std::optional<Value> default_of(const Key& key);
// Returns the key's value in `config`, or nothing if it is unset.
std::optional<Value> read_key(const Key& key, const RunConfig& config);
// Stores a value, which check_key() must accept, in `config`.
void write_key(const Key& key, const Value& value, RunConfig& config);
// Returns what is wrong with `value` for this key, e.g. "out of range; allowed: 1 or more". Returns
// "" if the value is valid.
std::string check_key(const Key& key, const Value& value);

// Converts a text from the command line or a variable to a value of this key. There, strings need
// no quotes and lists need no brackets.
Value loose_value(const Key& key, const std::string& text);

// Returns the whole table as a JSON list of objects: key, type, required, default, allowed,
// variable, doc.
std::string schema_json();

// Returns why this release refuses a value that users expect it to accept, or "" (planned.cpp).
std::string planned(std::string_view name, const Value& value);

}  // namespace yoke
