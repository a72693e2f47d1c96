#include "core/config/options.hpp"

#include <algorithm>
#include <cerrno>
#include <cmath>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <iterator>

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

// Puts the text into the item; returns what is wrong with it, or "".
std::string set_number(const OptionInfo& info, const std::optional<Value>& value, Item& item) {
  const auto* whole = value ? std::get_if<int64_t>(&value->data) : nullptr;
  const auto* real = value ? std::get_if<double>(&value->data) : nullptr;
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
  if (!option.is_string && !option.loose) return "expected a string";
  item.string_value = option.text;
  return "";
}

std::string set_string(const OptionInfo& info, const BackendOption& option, Item& item) {
  const std::string reason = set_text(option, item);
  if (!reason.empty()) return reason;
  const auto& words = info.choices;
  if (words.empty() || std::find(words.begin(), words.end(), option.text) != words.end()) return "";
  return "allowed: " + join(words) + did_you_mean(option.text, words);
}

std::string set_file(const BackendOption& option, Item& item) {
  const std::string reason = set_text(option, item);
  if (!reason.empty() || option.text.empty()) return reason;
  std::error_code ignored;
  if (std::filesystem::is_directory(option.text, ignored))
    return "the file cannot be read: it is a folder";
  std::ifstream in(option.text, std::ios::binary);
  if (!in) return std::string("the file cannot be read: ") + std::strerror(errno);
  item.content.assign(std::istreambuf_iterator<char>(in), {});
  return "";
}

// "NAME|PREFIX_*"
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
  const std::optional<Value> value =
      option.is_string ? std::nullopt : parse_toml_value(option.text);
  if (info.type != YOKE_OPTION_BOOL) return set_number(info, value, item);
  const auto* flag = value ? std::get_if<bool>(&value->data) : nullptr;
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
  // "" = no default; the choices of a string need not hold it.
  item.unset = info.default_value.empty() && !is_string;
  if (info.default_value.empty()) return item;
  const BackendOption option{
      owner.table, info.key, info.default_value, "default", is_string, false};
  const std::string reason = set_value(info, option, item);
  if (reason.empty()) return item;
  throw Error(YOKE_INTERNAL,
              owner.name + " declares option '" + info.key + "' with the default '" +
                  info.default_value + "': " + reason + "; this is a defect of it");
}

std::string shown(const BackendOption& option) {
  return option.is_string ? toml_string(option.text) : option.text;
}

std::string got(const BackendOption& option) {
  const std::optional<Value> value = parse_toml_value(shown(option));
  return value ? ", got " + kind_name(*value) : "";
}

std::string fault(const BackendOption& option, const std::string& reason) {
  return option.origin + ": " + option.backend + "." + option.key + " = " + shown(option) + ": " +
         reason + (reason.starts_with("expected") ? got(option) : "");
}

// What an item reads like in a run file.
std::string written(const Item& item) {
  switch (item.type) {
    case YOKE_OPTION_INT:
      return std::to_string(item.int_value);
    case YOKE_OPTION_DOUBLE:
      return to_text(Value{item.double_value});
    case YOKE_OPTION_BOOL:
      return item.int_value != 0 ? "true" : "false";
    default:
      return item.string_value;
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
      return "unknown type";
  }
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
    keys.push_back(info.key);
    items.push_back(default_item(owner, info));
  }
  for (const BackendOption& option : given) {
    if (option.backend != owner.table) continue;
    const auto found = std::find(keys.begin(), keys.end(), option.key);
    if (found == keys.end()) {
      const std::string known = keys.empty() ? "it has none" : "known: " + join(keys);
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
    const bool is_string = is_text(item.type);
    if (item.unset) {
      add_value(config.values, {backend + "." + item.key, "", item.origin});
      continue;
    }
    const std::string text = written(item);
    config.run.backend_options.push_back({backend, item.key, text, item.origin, is_string, false});
    add_value(config.values,
              {backend + "." + item.key, is_string ? toml_string(text) : text, item.origin});
  }
}

}  // namespace yoke
