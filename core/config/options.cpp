#include "core/config/options.hpp"

#include <algorithm>
#include <cerrno>
#include <cmath>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <iterator>

#include "core/config/families.hpp"
#include "core/config/located_path.hpp"
#include "core/config/schema.hpp"
#include "core/config/toml_file.hpp"
#include "yoke/nearest.hpp"

namespace yoke {
namespace {

using Item = OptionList::Item;

std::string limits(const OptionInfo& info) {
  if (info.min > info.max) return "any";
  if (std::isinf(info.min) && std::isfinite(info.max)) {
    return "at most " + to_text(Value{info.max});
  }
  return Range{info.min, info.max}.text();
}

bool is_text(int32_t type) {
  return type == YOKE_OPTION_STRING || type == YOKE_OPTION_FILE || type == YOKE_OPTION_VARIABLES;
}

// Each set_...() function stores the value in the item and returns what is wrong with it, or "".
std::string set_number(const OptionInfo& info, const Value& value, Item& item) {
  const auto* whole = std::get_if<int64_t>(&value.data);
  const auto* real = std::get_if<double>(&value.data);
  if (info.type == YOKE_OPTION_INT && whole == nullptr) return "expected an integer";
  if (whole == nullptr && real == nullptr) return "expected a number";
  const double number = whole != nullptr ? static_cast<double>(*whole) : *real;
  if (info.type == YOKE_OPTION_INT) {
    item.int_value = *whole;
  } else {
    item.double_value = number;
  }
  if (!std::isfinite(number)) return "expected a finite number";
  if (info.min <= info.max && !Range{info.min, info.max}.holds(number)) {
    return "out of range; allowed: " + limits(info);
  }
  return "";
}

std::string set_text(const BackendOption& option, Item& item) {
  const auto* text = std::get_if<std::string>(&option.value.data);
  if (text == nullptr && !option.raw_text) return "expected a string";
  item.string_value = text != nullptr ? *text : *option.raw_text;
  return "";
}

std::string set_string(const OptionInfo& info, const BackendOption& option, Item& item) {
  const std::string reason = set_text(option, item);
  if (!reason.empty()) return reason;
  const std::string& text = item.string_value;
  const auto& words = info.choices;
  if (words.empty() || std::find(words.begin(), words.end(), text) != words.end()) return "";
  return "allowed: " + join(words) + did_you_mean(text, words);
}

std::string set_file(const BackendOption& option, Item& item) {
  const std::string reason = set_text(option, item);
  if (!reason.empty() || item.string_value.empty()) return reason;
  LocatedPath found = locate(option.folder, item.string_value);
  item.string_value = std::move(found.path);
  item.note = std::move(found.note);
  const std::string& path = item.string_value;
  std::error_code ignored;
  if (std::filesystem::is_directory(path, ignored))
    return "the file cannot be read: it is a folder";
  std::ifstream in(path, std::ios::binary);
  if (!in) return std::string("the file cannot be read: ") + std::strerror(errno);
  item.content.assign(std::istreambuf_iterator<char>(in), {});
  return "";
}

// Returns true if the variable is in a list such as "NAME|PREFIX_*".
bool is_listed(const std::string& variable, const std::string& patterns) {
  for (size_t begin = 0; begin < patterns.size();) {
    const size_t end = std::min(patterns.find('|', begin), patterns.size());
    const std::string pattern = patterns.substr(begin, end - begin);
    const bool prefix = pattern.ends_with('*');
    if (prefix ? variable.starts_with(pattern.substr(0, pattern.size() - 1)) : variable == pattern)
      return true;
    begin = end + 1;
  }
  return false;
}

std::string set_variables(const BackendOption& option, Item& item) {
  const std::string reason = set_text(option, item);
  item.content.clear();
  for (auto [name, value] : process_environment()) {
    if (!is_listed(name, item.string_value)) continue;
    std::replace(value.begin(), value.end(), '\n', ' ');
    item.content += name + "=" + value + "\n";
  }
  return reason;
}

std::string set_value(const OptionInfo& info, const BackendOption& option, Item& item) {
  if (info.type == YOKE_OPTION_STRING) return set_string(info, option, item);
  if (info.type == YOKE_OPTION_FILE) return set_file(option, item);
  if (info.type == YOKE_OPTION_VARIABLES) return set_variables(option, item);
  if (info.type != YOKE_OPTION_BOOL) return set_number(info, option.value, item);
  const auto* flag = std::get_if<bool>(&option.value.data);
  if (flag == nullptr) return "expected true or false";
  item.int_value = *flag ? 1 : 0;
  return "";
}

Item default_item(const OptionOwner& owner, const OptionInfo& info) {
  Item item;
  item.key = info.key;
  item.type = info.type;
  item.origin = "default";
  const bool is_string = is_text(info.type);
  // An empty default_value means that the option has no default. For a text, however, the empty
  // string is the default, even if it is not one of the choices.
  item.unset = info.default_value.empty() && !is_string;
  if (info.default_value.empty()) return item;
  const Value as_string{info.default_value};
  const Value value =
      is_string ? as_string : parse_toml_value(info.default_value).value_or(as_string);
  const BackendOption option{owner.table, info.key, value, "default", std::nullopt};
  const std::string reason = set_value(info, option, item);
  if (reason.empty()) return item;
  throw Error(YOKE_INTERNAL,
              owner.name + " declares option '" + info.key + "' with the default '" +
                  info.default_value + "': " + reason + "; this is a bug in " + owner.name);
}

std::string fault(const BackendOption& option, const std::string& reason) {
  return option.origin + ": " + option.backend + "." + option.key + " = " + written(option) + ": " +
         reason + (reason.starts_with("expected") ? ", got " + kind_name(option.value) : "");
}

Value value_of(const Item& item) {
  switch (item.type) {
    case YOKE_OPTION_INT:
      return {item.int_value};
    case YOKE_OPTION_DOUBLE:
      return {item.double_value};
    case YOKE_OPTION_BOOL:
      return {item.int_value != 0};
    default:
      return {item.string_value};
  }
}

}  // namespace

std::vector<OptionInfo> option_infos(const YokeDescription& description) {
  std::vector<OptionInfo> infos;
  for (uint64_t i = 0; i < description.num_options; ++i) {
    const YokeOptionInfo& from = *description.options[i];
    OptionInfo info;
    info.key = view(from.key);
    info.type = from.type;
    info.default_value = view(from.default_value);
    info.doc = view(from.doc);
    const std::string words(view(from.choices));
    for (size_t begin = 0; begin < words.size();) {
      const size_t end = std::min(words.find('|', begin), words.size());
      info.choices.push_back(words.substr(begin, end - begin));
      begin = end + 1;
    }
    if (from.min <= from.max) {
      info.min = from.min;
      info.max = from.max;
    }
    infos.push_back(std::move(info));
  }
  return infos;
}

const char* option_type_name(int32_t type) {
  switch (type) {
    case YOKE_OPTION_INT:
      return "int";
    case YOKE_OPTION_DOUBLE:
      return "float";
    case YOKE_OPTION_BOOL:
      return "bool";
    case YOKE_OPTION_STRING:
      return "string";
    case YOKE_OPTION_FILE:
      return "file";
    case YOKE_OPTION_VARIABLES:
      return "variables";
    default:
      return "unknown";
  }
}

BackendOption loose_option(const std::string& backend,
                           const std::string& key,
                           const std::string& text,
                           const std::string& origin) {
  std::optional<Value> value = parse_toml_value(text);
  if (!value || !is_scalar(*value)) value = Value{text};
  return {backend, key, *value, origin, text};
}

std::string written(const BackendOption& option) {
  const bool is_string = std::holds_alternative<std::string>(option.value.data);
  return option.raw_text && !is_string ? *option.raw_text : to_text(option.value);
}

OptionList::OptionList(std::vector<Item> items) : items_(std::move(items)) {
  for (const Item& item : items_) {
    view_.push_back({view(item.key),
                     view(item.string_value),
                     view(item.content),
                     item.double_value,
                     item.int_value,
                     item.type,
                     item.given ? 1 : 0});
  }
}

OptionList check_options(const std::vector<BackendOption>& given,
                         const OptionOwner& owner,
                         const std::vector<OptionInfo>& infos) {
  std::vector<Item> items;
  std::vector<std::string> keys, faults;
  for (const OptionInfo& info : infos) {
    if (owner.table == "model" && is_key_of_any_family(info.key)) {
      throw Error(YOKE_INVALID_ARGUMENT,
                  owner.name + " declares the option '" + info.key + "', but model." + info.key +
                      " is a key that Yoke applies to the models of any family; give the option "
                      "another name");
    }
    keys.push_back(info.key);
    items.push_back(default_item(owner, info));
  }
  for (const BackendOption& option : given) {
    if (option.backend != owner.table) continue;
    const auto found = std::find(keys.begin(), keys.end(), option.key);
    if (found == keys.end()) {
      const std::string known = keys.empty() ? "it has no options" : "known: " + join(keys);
      faults.push_back(option.origin + ": " + owner.name + " has no option '" + option.key + "'; " +
                       known + did_you_mean(option.key, keys));
      continue;
    }
    const size_t i = static_cast<size_t>(found - keys.begin());
    const std::string reason = set_value(infos[i], option, items[i]);
    if (!reason.empty()) faults.push_back(fault(option, reason));
    items[i].given = true;
    items[i].unset = false;
    items[i].origin = option.origin;
  }
  if (!faults.empty()) throw ConfigError("options of " + owner.name, faults);
  return OptionList(std::move(items));
}

void fill_options(LoadedConfig& config, const std::string& backend, const OptionList& options) {
  std::erase_if(config.run.backend_options,
                [&](const BackendOption& option) { return option.backend == backend; });
  for (const Item& item : options.items()) {
    std::erase_if(config.values,
                  [&](const Resolved& old) { return old.key == backend + "." + item.key; });
  }
  for (const Item& item : options.items()) {
    const std::string name = backend + "." + item.key;
    if (item.unset) {
      add_value(config.values, {name, "", item.origin});
      continue;
    }
    const BackendOption option{backend, item.key, value_of(item), item.origin, std::nullopt};
    add_value(config.values, {name, written(option), item.origin});
    config.run.backend_options.push_back(option);
  }
}

}  // namespace yoke
