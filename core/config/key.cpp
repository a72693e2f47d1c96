// One key of the schema: its type, the values it accepts, and access to its field in a RunConfig.
//
// A key's type is not written down. It follows from the type of the field that Key::field points
// to, so that the schema and RunConfig cannot disagree.
#include <algorithm>
#include <cmath>
#include <type_traits>

#include "core/config/schema.hpp"
#include "core/config/synonyms.hpp"
#include "core/config/toml_file.hpp"
#include "yoke/nearest.hpp"
#include "yoke/text.hpp"

namespace yoke {
namespace {

enum class Type {
  kInt,
  kFloat,
  kBool,
  kString,
  kTwoFloats,
  kTwoInts,
  kInts,
  kFloats,
  kStrings,
  kOneOrMoreStrings
};

// Maps the type of a field to the type of its value: std::optional<T> to T, any other T to itself.
template <class T>
struct Inner {
  using type = T;
};
template <class T>
struct Inner<std::optional<T>> {
  using type = T;
};

template <class T>
constexpr Type type_of() {
  using U = typename Inner<T>::type;
  if constexpr (std::is_same_v<U, bool>)
    return Type::kBool;
  else if constexpr (std::is_integral_v<U>)
    return Type::kInt;
  else if constexpr (std::is_same_v<U, double>)
    return Type::kFloat;
  else if constexpr (std::is_same_v<U, std::string>)
    return Type::kString;
  else if constexpr (std::is_same_v<U, std::array<double, 2>>)
    return Type::kTwoFloats;
  else if constexpr (std::is_same_v<U, std::array<int64_t, 2>>)
    return Type::kTwoInts;
  else if constexpr (std::is_same_v<U, std::vector<int64_t>>)
    return Type::kInts;
  else if constexpr (std::is_same_v<U, std::vector<double>>)
    return Type::kFloats;
  else
    return Type::kStrings;
}

Type type_of(const Key& key) {
  if (key.is(kOneOrMore)) return Type::kOneOrMoreStrings;
  RunConfig any;
  return std::visit([](auto* place) { return type_of<std::decay_t<decltype(*place)>>(); },
                    key.field(any));
}

template <class T>
Value to_value(const T& place) {
  if constexpr (std::is_same_v<T, bool>)
    return {place};
  else if constexpr (std::is_integral_v<T>)
    return {static_cast<int64_t>(place)};
  else if constexpr (std::is_same_v<T, double> || std::is_same_v<T, std::string>)
    return {place};
  else {
    std::vector<Value> list;
    for (const auto& item : place) list.push_back({item});
    return {list};
  }
}

double number(const Value& value) {
  if (const auto* i = std::get_if<int64_t>(&value.data)) return static_cast<double>(*i);
  return std::get<double>(value.data);
}

template <class T>
T from_value(const Value& value) {
  if constexpr (std::is_same_v<T, bool>)
    return std::get<bool>(value.data);
  else if constexpr (std::is_integral_v<T>)
    return static_cast<T>(std::get<int64_t>(value.data));
  else if constexpr (std::is_same_v<T, double>)
    return number(value);
  else if constexpr (std::is_same_v<T, std::string>)
    return std::get<std::string>(value.data);
  else {
    const auto& list = std::get<std::vector<Value>>(value.data);
    if constexpr (std::is_same_v<T, std::array<double, 2>>) {
      return {number(list[0]), number(list[1])};
    } else if constexpr (std::is_same_v<T, std::array<int64_t, 2>>) {
      return {std::get<int64_t>(list[0].data), std::get<int64_t>(list[1].data)};
    } else {
      T items;
      for (const Value& v : list) items.push_back(from_value<typename T::value_type>(v));
      return items;
    }
  }
}

// Returns the list that a value of a key with kOneOrMore stands for. An empty string is an empty
// list.
Value as_list(const Value& value) {
  const auto* text = std::get_if<std::string>(&value.data);
  if (text == nullptr) return value;
  return {text->empty() ? std::vector<Value>{} : std::vector<Value>{value}};
}

// The inverse of as_list(): one string is not written as a list, so a run file reads back
// unchanged.
Value without_list(const Value& value) {
  const auto& list = std::get<std::vector<Value>>(value.data);
  if (list.empty()) return {std::string()};
  return list.size() == 1 ? list[0] : value;
}

bool is_number(const Value& value) {
  return std::holds_alternative<int64_t>(value.data) || std::holds_alternative<double>(value.data);
}
bool is_integer(const Value& value) {
  return std::holds_alternative<int64_t>(value.data);
}
bool is_string(const Value& value) {
  return std::holds_alternative<std::string>(value.data);
}

bool has_type(Type type, const Value& value) {
  const auto* list = std::get_if<std::vector<Value>>(&value.data);
  switch (type) {
    case Type::kInt:
      return is_integer(value);
    case Type::kFloat:
      return is_number(value);
    case Type::kBool:
      return std::holds_alternative<bool>(value.data);
    case Type::kString:
      return is_string(value);
    case Type::kTwoFloats:
      return list != nullptr && list->size() == 2 &&
             std::all_of(list->begin(), list->end(), is_number);
    case Type::kTwoInts:
      return list != nullptr && list->size() == 2 &&
             std::all_of(list->begin(), list->end(), is_integer);
    case Type::kInts:
      return list != nullptr && std::all_of(list->begin(), list->end(), is_integer);
    case Type::kFloats:
      return list != nullptr && std::all_of(list->begin(), list->end(), is_number);
    case Type::kOneOrMoreStrings:
      if (is_string(value)) return true;
      [[fallthrough]];
    case Type::kStrings:
      return list != nullptr && std::all_of(list->begin(), list->end(), is_string);
  }
  return false;
}

const char* expectation(Type type) {
  switch (type) {
    case Type::kInt:
      return "an integer";
    case Type::kFloat:
      return "a number";
    case Type::kBool:
      return "true or false";
    case Type::kString:
      return "a string";
    case Type::kTwoFloats:
      return "a list of two numbers, like [0.9, 0.95]";
    case Type::kTwoInts:
      return "a list of two integers, like [10, 12]";
    case Type::kInts:
      return "a list of integers, like [1, 10]";
    case Type::kFloats:
      return "a list of numbers, like [0.7, 0.3]";
    case Type::kOneOrMoreStrings:
      return "a string, or a list of strings, like [\"a\", \"b\"]";
    case Type::kStrings:
      return "a list of strings, like [\"/a\", \"/b\"]";
  }
  return "";
}

std::string check_type(Type type, const Value& value) {
  if (has_type(type, value)) return "";
  std::string text = "expected " + std::string(expectation(type)) + ", got " + kind_name(value);
  const auto* real = std::get_if<double>(&value.data);
  if (type == Type::kInt && real != nullptr && *real == std::floor(*real) &&
      std::abs(*real) < 1e15) {
    text += concat("; write ", static_cast<int64_t>(*real));
  }
  if (type == Type::kString && !std::holds_alternative<std::vector<Value>>(value.data)) {
    text += "; write " + toml_string(to_text(value));
  }
  return text;
}

std::string check_number(const Range& range, double value) {
  if (!std::isfinite(value)) return "expected a finite number";
  if (range.holds(value)) return "";
  // kMaxCount is an implementation limit: the message names it only if the value exceeds it.
  const bool counts = range.max == kMaxCount && value > range.max;
  return "out of range; allowed: " + (counts ? concat("at most ", kMaxCount) : range.text());
}

std::string check_text(const Key& key, const std::string& text) {
  if (!is_clean_text(text)) return "not valid UTF-8 text";
  if (key.is(kNotEmpty) && text.empty()) return "must not be empty";
  const std::vector<std::string> words = choices(key);
  if (words.empty() || std::find(words.begin(), words.end(), text) != words.end()) return "";
  const std::string meant = meant_value(text, words);
  return "allowed: " + join(words) + did_you_mean(meant.empty() ? text : meant, words);
}

std::string check_item(const Key& key, const Value& value) {
  if (is_string(value)) return check_text(key, std::get<std::string>(value.data));
  return is_number(value) ? check_number(key.range, number(value)) : "";
}

}  // namespace

bool Range::holds(double value) const {
  const bool low = open_min ? value > min : value >= min;
  const bool high = open_max ? value < max : value <= max;
  return low && high;
}

std::string Range::text() const {
  const bool bounded = std::isfinite(max) && max != kMaxCount;
  const auto number = [](double x) {
    std::string text = to_text(x);
    if (text.ends_with(".0")) text.resize(text.size() - 2);
    return text;
  };
  std::string text = open_min ? "above " + number(min) : number(min) + (bounded ? "" : " or more");
  if (!open_min && bounded) text = "at least " + number(min);
  if (bounded) text += (open_max ? " and below " : " and at most ") + number(max);
  return std::isfinite(min) ? text : "any";
}

std::string type_name(const Key& key) {
  switch (type_of(key)) {
    case Type::kInt:
      return "int";
    case Type::kFloat:
      return "float";
    case Type::kBool:
      return "bool";
    case Type::kString:
      return "string";
    case Type::kTwoFloats:
      return "two floats";
    case Type::kTwoInts:
      return "two ints";
    case Type::kInts:
      return "ints";
    case Type::kFloats:
      return "floats";
    case Type::kStrings:
      return "strings";
    case Type::kOneOrMoreStrings:
      return "string or strings";
  }
  return "";
}

std::vector<std::string> choices(const Key& key) {
  std::vector<std::string> words;
  for (size_t begin = 0; begin < key.choices.size();) {
    const size_t end = std::min(key.choices.find('|', begin), key.choices.size());
    words.emplace_back(key.choices.substr(begin, end - begin));
    begin = end + 1;
  }
  return words;
}

std::string allowed(const Key& key) {
  if (!key.choices.empty()) return join(choices(key));
  if (type_of(key) == Type::kBool) return "true, false";
  return key.range.text();
}

std::optional<Value> read_key(const Key& key, const RunConfig& config) {
  // field() returns a pointer for writing, but nothing is written here.
  const Field field = key.field(const_cast<RunConfig&>(config));
  std::optional<Value> value = std::visit(
      [](auto* place) -> std::optional<Value> {
        using T = std::decay_t<decltype(*place)>;
        if constexpr (!std::is_same_v<T, typename Inner<T>::type>) {
          return place->has_value() ? std::optional(to_value(**place)) : std::nullopt;
        } else {
          return to_value(*place);
        }
      },
      field);
  if (key.is(kZeroIsUnset) && value == Value{int64_t{0}}) return std::nullopt;
  if (key.is(kOneOrMore)) return without_list(*value);
  return value;
}

void write_key(const Key& key, const Value& value, RunConfig& config) {
  std::visit(
      [&](auto* place) {
        using T = typename Inner<std::decay_t<decltype(*place)>>::type;
        *place = from_value<T>(key.is(kOneOrMore) ? as_list(value) : value);
      },
      key.field(config));
}

std::string check_key(const Key& key, const Value& value) {
  if (const std::string reason = planned(key.name, value); !reason.empty()) return reason;
  if (const std::string fault = check_type(type_of(key), value); !fault.empty()) return fault;
  const auto* list = std::get_if<std::vector<Value>>(&value.data);
  if (list == nullptr) return check_item(key, value);
  for (const Value& item : *list) {
    if (key.is(kOneOrMore) && item == Value{std::string()}) return "no entry may be empty";
    if (const std::string fault = check_item(key, item); !fault.empty()) return fault;
  }
  return "";
}

// The key's type decides how the text is read: for a string key, 12 is the string "12". A list may
// be written without brackets, and folders may be separated by ':' as in PATH. A text that fits
// none of these forms is returned as a string, and check_key() reports the wrong type.
Value loose_value(const Key& key, const std::string& text) {
  const Type type = type_of(key);
  std::optional<Value> value = parse_toml_value(text);
  if (type == Type::kString) return value && is_string(*value) ? *value : Value{text};
  if (value && has_type(type, *value)) return *value;
  if (type == Type::kOneOrMoreStrings) return {text};
  const bool is_list = text.starts_with('[');
  if (!is_list && (type == Type::kTwoFloats || type == Type::kTwoInts || type == Type::kInts ||
                   type == Type::kFloats)) {
    if (auto list = parse_toml_value("[" + text + "]")) return *list;
  }
  if (!is_list && type == Type::kStrings) {
    std::vector<Value> parts;
    for (size_t begin = 0; begin < text.size();) {
      const size_t end = std::min(text.find(':', begin), text.size());
      if (end > begin) parts.push_back({text.substr(begin, end - begin)});
      begin = end + 1;
    }
    return {parts};
  }
  return value.value_or(Value{text});
}

}  // namespace yoke
