#include "tests/cli/imported_keys.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <cctype>
#include <nlohmann/json.hpp>
#include <set>
#include <sstream>

#include "sdk/compat/yaml.hpp"

namespace yoke::testing {
namespace {

void add_keys(const nlohmann::json& object, const std::string& path, std::set<std::string>& keys) {
  for (const auto& [name, value] : object.items()) {
    const std::string inner = path.empty() ? name : path + "." + name;
    if (value.is_object() && !value.empty()) {
      add_keys(value, inner, keys);
    } else {
      keys.insert(inner);
    }
  }
}

void add_keys(const compat::YamlNode& map, const std::string& path, std::set<std::string>& keys) {
  for (const auto& [name, node] : map.children) {
    const std::string inner = path.empty() ? name : path + "." + name;
    if (node.kind == compat::YamlNode::kMap && !node.children.empty()) {
      add_keys(node, inner, keys);
    } else {
      keys.insert(inner);
    }
  }
}

std::set<std::string> keys_of(const std::string& file, const std::string& text) {
  std::set<std::string> keys;
  if (file.ends_with(".json")) {
    add_keys(nlohmann::json::parse(text), "", keys);
  } else {
    add_keys(compat::parse_yaml(text), "", keys);
  }
  return keys;
}

// Returns the keys of the file that an import prints with their line, once in each line: the others
// have "its default", or are unset.
std::set<std::string> named_keys(const std::string& file, const std::string& out) {
  std::set<std::string> keys;
  std::istringstream lines(out);
  for (std::string line; std::getline(lines, line);) {
    const size_t at = line.find("# " + file + ":"), refused = line.find(file + ":");
    const size_t label = at != line.npos ? at + 2 : line.starts_with("# refused: ") ? refused : at;
    if (label == line.npos) continue;
    const size_t number = label + file.size() + 1, key = line.find(": ", number);
    if (number == key || key == line.npos || !std::isdigit(line[number])) continue;
    keys.insert(line.substr(key + 2, line.find(" = ", key) - key - 2));
  }
  return keys;
}

}  // namespace

void expect_all_keys_named(const Playground& p, const std::string& file, const std::string& text) {
  const SubprocessResult r = p.yoke({"config", "import", "--partial", file, "model.preset=tiny"});
  SCOPED_TRACE(r.out + r.err);
  ASSERT_EQ(r.ending.exit_code, 0);
  const std::set<std::string> named = named_keys(file, r.out), given = keys_of(file, text);
  const auto contains = [](const std::string& outer, const std::string& inner) {
    return inner == outer || inner.starts_with(outer + ".");
  };
  for (const std::string& key : given)
    EXPECT_TRUE(
        std::any_of(named.begin(), named.end(), [&](const auto& n) { return contains(n, key); }))
        << key << " is not named";
  for (const std::string& key : named)
    EXPECT_TRUE(
        std::any_of(given.begin(), given.end(), [&](const auto& g) { return contains(key, g); }))
        << key << " is not in the file";
}

}  // namespace yoke::testing
