// Parses a YAML document into a tree. Its size and depth are limited and aliases are refused, so
// the tree is never much larger than the text. This file does not use LibTorch.
#pragma once

#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace yoke::accelerate_compat {

struct YamlNode {
  enum Kind { kNull, kScalar, kList, kMap } kind = kNull;
  std::string text;     // value of a scalar
  bool quoted = false;  // whether the scalar is in quotes, and hence always a string
  int line = 0;         // line of the file; 1 is the first
  // Entries of a map or a list, in the order of the file. Entries of a list have empty names.
  std::vector<std::pair<std::string, YamlNode>> children;
};

// The exception that parse_yaml throws.
struct YamlError {
  int line;
  std::string reason;
};

// Parses one document of at most 64 KiB and 8 levels of nesting. Throws YamlError at the first
// error.
YamlNode parse_yaml(std::string_view text);

}  // namespace yoke::accelerate_compat
