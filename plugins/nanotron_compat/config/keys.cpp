#include "plugins/nanotron_compat/config/keys.hpp"

#include <map>
#include <set>

#include "yoke/text.hpp"

namespace yoke::nanotron_compat {

const std::vector<Key>& keys() {
  static const std::vector<Key> all = [] {
    std::vector<Key> list;
    for (const auto& table : {honoured_keys(), run_keys(), refused_keys()})
      list.insert(list.end(), table.begin(), table.end());
    for (const auto& groups : {no_effect_groups(), inert_groups()}) {
      for (const Group& group : groups) {
        for (const std::string_view name : group.names)
          list.push_back({name, group.handling, compat::Form::kWords, "", "", group.why});
      }
    }
    return list;
  }();
  return all;
}

const Key* find_key(std::string_view path) {
  static const std::map<std::string_view, const Key*> index = [] {
    std::map<std::string_view, const Key*> map;
    for (const Key& key : keys()) map[key.name] = &key;
    return map;
  }();
  const auto found = index.find(path);
  return found == index.end() ? nullptr : found->second;
}

bool is_section(std::string_view path) {
  const std::string prefix = concat(path, ".");
  for (const Key& key : keys()) {
    if (key.name.starts_with(prefix)) return true;
  }
  return false;
}

std::vector<std::string> siblings(std::string_view path) {
  const size_t dot = path.rfind('.');
  const std::string_view prefix = dot == path.npos ? "" : path.substr(0, dot + 1);
  std::set<std::string> names;
  for (const Key& key : keys()) {
    if (!key.name.starts_with(prefix)) continue;
    const std::string_view rest = key.name.substr(prefix.size());
    names.emplace(rest.substr(0, rest.find_first_of(".[")));
  }
  return {names.begin(), names.end()};
}

std::string option_name(const Key& key) {
  return std::string(key.name.substr(key.name.rfind('.') + 1));
}

}  // namespace yoke::nanotron_compat
