#include "sdk/compat/toml.hpp"

#define TOML_EXCEPTIONS 0
#define TOML_HEADER_ONLY 1  // so that no library has to be shipped
#include <toml++/toml.h>

#include <algorithm>

#include "yoke/text.hpp"

namespace yoke::compat {
namespace {

constexpr size_t kMaxBytes = 64 * 1024;

std::string text_of(const toml::node& node) {
  if (const auto* v = node.as_boolean()) return v->get() ? "true" : "false";
  if (const auto* v = node.as_integer()) return concat(v->get());
  if (const auto* v = node.as_floating_point()) return concat(v->get());
  if (const auto* v = node.as_string()) return v->get();
  return "{...}";
}

void add_keys(const toml::table& table, const std::string& prefix, std::vector<TomlKey>& out) {
  for (const auto& [key, node] : table) {
    const std::string path = prefix + std::string(key.str());
    if (const auto* below = node.as_table()) {
      add_keys(*below, path + ".", out);
      continue;
    }
    TomlKey& found = out.emplace_back();
    found.path = path;
    found.line = static_cast<int>(key.source().begin.line);
    if (const auto* list = node.as_array()) {
      found.is_list = true;
      for (const toml::node& entry : *list) found.values.push_back(text_of(entry));
    } else {
      found.values = {text_of(node)};
    }
  }
}

}  // namespace

std::vector<TomlKey> parse_toml(std::string_view text) {
  if (text.size() > kMaxBytes)
    throw TomlError{1, concat(text.size(), " bytes; a config may have at most ", kMaxBytes)};
  const toml::parse_result result = toml::parse(text);
  if (!result) {
    const toml::parse_error& error = result.error();
    throw TomlError{static_cast<int>(error.source().begin.line), std::string(error.description())};
  }
  std::vector<TomlKey> keys;
  add_keys(result.table(), "", keys);
  std::stable_sort(
      keys.begin(), keys.end(), [](const auto& a, const auto& b) { return a.line < b.line; });
  return keys;
}

}  // namespace yoke::compat
