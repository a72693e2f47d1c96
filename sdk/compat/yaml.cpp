#include "sdk/compat/yaml.hpp"

#include <yaml-cpp/eventhandler.h>
#include <yaml-cpp/exceptions.h>
#include <yaml-cpp/mark.h>
#include <yaml-cpp/parser.h>

#include <cctype>
#include <charconv>
#include <optional>
#include <sstream>

#include "yoke/text.hpp"

namespace yoke::compat {
namespace {

constexpr size_t kMaxBytes = 64 * 1024;
constexpr size_t kMaxLevels = 8;

int line_of(const YAML::Mark& mark) {
  return mark.line + 1;
}

// Builds the tree from yaml-cpp's events. The tree of yaml-cpp itself would share the value of an
// alias between all its uses, and a few lines of nested aliases would take forever to walk.
class TreeBuilder final : public YAML::EventHandler {
 public:
  YamlNode take() { return std::move(root_); }

  void OnDocumentStart(const YAML::Mark&) override {}
  void OnDocumentEnd() override {}
  void OnNull(const YAML::Mark& mark, YAML::anchor_t) override { put(mark, YamlNode::kNull); }
  void OnAlias(const YAML::Mark& mark, YAML::anchor_t) override {
    throw YamlError{line_of(mark), "an alias (*name); write its value out"};
  }
  void OnScalar(const YAML::Mark& mark,
                const std::string& tag,
                YAML::anchor_t,
                const std::string& value) override {
    if (!open_.empty() && open_.back().node.kind == YamlNode::kMap && !open_.back().key) {
      open_.back().key = value;
      return;
    }
    check_tag(mark, tag);
    put(mark, YamlNode::kScalar, value, tag == "!");
  }
  void OnSequenceStart(const YAML::Mark& mark,
                       const std::string& tag,
                       YAML::anchor_t,
                       YAML::EmitterStyle::value) override {
    check_tag(mark, tag);
    open(mark, YamlNode::kList);
  }
  void OnSequenceEnd() override { close(); }
  void OnMapStart(const YAML::Mark& mark,
                  const std::string& tag,
                  YAML::anchor_t,
                  YAML::EmitterStyle::value) override {
    check_tag(mark, tag);
    open(mark, YamlNode::kMap);
  }
  void OnMapEnd() override { close(); }

 private:
  struct Open {
    YamlNode node;
    std::optional<std::string> key;  // key of the next value of a map, once it has been read
  };

  // yaml-cpp reports the tag "?" for plain values and "!" for quoted ones. All others are refused.
  static void check_tag(const YAML::Mark& mark, const std::string& tag) {
    if (!tag.empty() && tag != "?" && tag != "!")
      throw YamlError{line_of(mark), "the tag " + tag + "; write the value without a tag"};
  }

  void open(const YAML::Mark& mark, YamlNode::Kind kind) {
    if (open_.size() == kMaxLevels) {
      throw YamlError{line_of(mark), concat("more than ", kMaxLevels, " levels of nesting")};
    }
    open_.emplace_back().node.kind = kind;
    open_.back().node.line = line_of(mark);
  }

  void close() {
    YamlNode node = std::move(open_.back().node);
    open_.pop_back();
    add(std::move(node));
  }

  void put(const YAML::Mark& mark,
           YamlNode::Kind kind,
           const std::string& text = "",
           bool quoted = false) {
    add({kind, text, quoted, line_of(mark), {}});
  }

  void add(YamlNode node) {
    if (open_.empty()) {
      root_ = std::move(node);
      return;
    }
    Open& parent = open_.back();
    if (parent.node.kind == YamlNode::kMap && !parent.key)
      throw YamlError{node.line, "a key that is not a word"};
    parent.node.children.emplace_back(parent.key.value_or(""), std::move(node));
    parent.key.reset();
  }

  YamlNode root_;
  std::vector<Open> open_;
};

}  // namespace

std::string shown_node(const YamlNode& node) {
  switch (node.kind) {
    case YamlNode::kNull:
      return "null";
    case YamlNode::kScalar:
      return node.text;
    case YamlNode::kList:
      return node.children.empty() ? "[]" : "[...]";
    case YamlNode::kMap:
      break;
  }
  return node.children.empty() ? "{}" : "{...}";
}

bool is_empty(const YamlNode& node) {
  if (node.kind != YamlNode::kScalar) return node.children.empty();
  if (node.quoted) return false;
  return node.text == "" || node.text == "~" || is_cased_word(node.text, "null");
}

bool is_cased_word(std::string_view text, std::string_view word) {
  if (text == word) return true;
  const auto upper = [](char c) {
    return static_cast<char>(std::toupper(static_cast<unsigned char>(c)));
  };
  std::string title(word), capitals(word);
  if (!title.empty()) title[0] = upper(title[0]);
  for (char& c : capitals) c = upper(c);
  return text == title || text == capitals;
}

std::optional<int64_t> decimal_integer(std::string_view text) {
  int64_t value = 0;
  const char* const end = text.data() + text.size();
  const auto [at, error] = std::from_chars(text.data(), end, value);
  if (error != std::errc() || at != end || std::to_string(value) != text) return std::nullopt;
  return value;
}

YamlNode parse_yaml(std::string_view text) {
  if (text.size() > kMaxBytes) {
    throw YamlError{1, concat(text.size(), " bytes; a config may have at most ", kMaxBytes)};
  }
  std::istringstream in{std::string(text)};
  TreeBuilder tree;
  try {
    YAML::Parser parser(in);
    parser.HandleNextDocument(tree);
    TreeBuilder second;
    if (parser.HandleNextDocument(second))
      throw YamlError{second.take().line, "a second document; keep one"};
  } catch (const YAML::ParserException& e) {
    throw YamlError{line_of(e.mark), e.msg};
  }
  return tree.take();
}

}  // namespace yoke::compat
