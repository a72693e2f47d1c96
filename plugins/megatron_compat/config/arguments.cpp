#include "plugins/megatron_compat/config/arguments.hpp"

#include <algorithm>
#include <map>

namespace yoke::megatron_compat {
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

}  // namespace yoke::megatron_compat
