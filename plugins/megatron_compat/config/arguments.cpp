#include "plugins/megatron_compat/config/arguments.hpp"

#include <algorithm>
#include <charconv>
#include <map>

namespace yoke::megatron_compat {
namespace {

// Returns whether two values are equal, as numbers if both are numbers.
bool same(std::string_view a, std::string_view b) {
  if (a == b) return true;
  double x = 0, y = 0;
  const auto is_number = [](std::string_view text, double& number) {
    const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), number);
    return error == std::errc() && end == text.data() + text.size();
  };
  return is_number(a, x) && is_number(b, y) && x == y;
}

}  // namespace

const std::vector<Argument>& arguments() {
  static const std::vector<Argument> all = [] {
    std::vector<Argument> list;
    for (const auto& table : {honoured_arguments(), run_arguments(), refused_arguments()})
      list.insert(list.end(), table.begin(), table.end());
    for (const auto& groups : {no_effect_groups(), inert_groups()}) {
      for (const Group& group : groups) {
        for (const std::string_view name : group.names)
          list.push_back({name, group.handling, Form::kWords, "", "", group.why});
      }
    }
    return list;
  }();
  return all;
}

const Argument* find_argument(std::string_view name) {
  static const std::map<std::string_view, const Argument*> index = [] {
    std::map<std::string_view, const Argument*> map;
    for (const Argument& argument : arguments()) map[argument.name] = &argument;
    for (const Alias& alias : aliases()) map[alias.alias] = map.at(alias.name);
    return map;
  }();
  const auto found = index.find(name);
  return found == index.end() ? nullptr : found->second;
}

const std::vector<std::string>& spellings() {
  static const std::vector<std::string> all = [] {
    std::vector<std::string> list;
    for (const Argument& argument : arguments()) list.emplace_back(argument.name);
    for (const Alias& alias : aliases()) list.emplace_back(alias.alias);
    return list;
  }();
  return all;
}

std::string option_name(const Argument& argument) {
  std::string name(argument.name.substr(2));
  std::replace(name.begin(), name.end(), '-', '_');
  return name;
}

bool accepts(const Argument& argument, std::string_view value) {
  for (size_t begin = 0; begin <= argument.accepted.size();) {
    const size_t end = std::min(argument.accepted.find('|', begin), argument.accepted.size());
    if (same(argument.accepted.substr(begin, end - begin), value)) return true;
    begin = end + 1;
  }
  return argument.accepted.empty() && argument.handling != Handling::kRefused;
}

}  // namespace yoke::megatron_compat
