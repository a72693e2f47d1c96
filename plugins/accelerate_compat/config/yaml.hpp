// A YAML document as a tree, bounded in size and depth and without aliases, so that no input makes
// it grow. No LibTorch.
#pragma once

#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace yoke::accelerate_compat {

struct YamlNode {
  enum Kind { kNull, kScalar, kList, kMap } kind = kNull;
  std::string text;     // of a scalar
  bool quoted = false;  // '...' or "...": a string, whatever it looks like
  int line = 0;         // 1 is the first
  std::vector<std::pair<std::string, YamlNode>> children;  // of a list without names; in file order
};

struct YamlError {
  int line;
  std::string reason;
};

// One document of at most 64 KiB and 8 levels. Throws YamlError at the first fault of its syntax.
YamlNode parse_yaml(std::string_view text);

}  // namespace yoke::accelerate_compat
