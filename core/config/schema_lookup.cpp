#include <algorithm>

#include "core/config/schema.hpp"

namespace yoke {

const Key* find_key(std::string_view name) {
  for (const Key& key : schema()) {
    if (key.name == name) return &key;
  }
  return nullptr;
}

std::vector<std::string> key_names() {
  std::vector<std::string> names;
  for (const Key& key : schema()) names.emplace_back(key.name);
  return names;
}

bool is_table(std::string_view name) {
  const std::string prefix = std::string(name) + ".";
  return std::any_of(schema().begin(), schema().end(), [&](const Key& key) {
    return key.name.substr(0, prefix.size()) == prefix;
  });
}

std::optional<Value> default_of(const Key& key) {
  if (!key.is(kRequired)) return read_key(key, RunConfig{});
  const std::string backend = YOKE_DEFAULT_BACKEND;
  if (key.name != "parallel_backend" || backend.empty()) return std::nullopt;
  return Value{backend};
}

}  // namespace yoke
