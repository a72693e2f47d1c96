// Parses a YAML document into a tree. Its size and depth are limited and aliases are refused, so
// the tree is never much larger than the text. This file does not use LibTorch.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace yoke::compat {

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

// Returns the text of a node in messages; "{...}" and "[...]" for what is not one value.
std::string shown_node(const YamlNode& node);
// Returns whether a node holds nothing: null in any spelling of YAML, "", {} or [].
bool is_empty(const YamlNode& node);
// Returns whether a text is a word in lower case as YAML 1.1 may capitalise it: yes, Yes or YES,
// but not yEs.
bool is_cased_word(std::string_view text, std::string_view word);
// Returns a decimal integer. Octal numbers and 1_000, which YAML 1.1 allows, are none: 010 would
// silently mean 8.
std::optional<int64_t> decimal_integer(std::string_view text);

}  // namespace yoke::compat
