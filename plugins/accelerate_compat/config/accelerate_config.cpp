// Reads an Accelerate config from a file and from environment variables.
//
// Values are interpreted as in Accelerate. It reads variables as text and the file with PyYAML,
// which follows YAML 1.1 and takes an unquoted no for a boolean. Accelerate ignores many unknown or
// contradictory keys; here every key is honoured, noted or refused by name.
#include "plugins/accelerate_compat/config/accelerate_config.hpp"

#include <algorithm>
#include <cctype>
#include <set>

#include "yoke/nearest.hpp"
#include "yoke/text.hpp"

namespace yoke::accelerate_compat {
namespace {

using compat::YamlError;
using compat::YamlNode;

std::string lower(std::string text) {
  std::transform(
      text.begin(), text.end(), text.begin(), [](unsigned char c) { return std::tolower(c); });
  return text;
}

std::string upper(std::string text) {
  std::transform(
      text.begin(), text.end(), text.begin(), [](unsigned char c) { return std::toupper(c); });
  return text;
}

bool is_one_of(const std::string& text, std::initializer_list<std::string_view> words) {
  return std::find(words.begin(), words.end(), text) != words.end();
}

// Returns "true" or "false" for a word that Accelerate reads as a boolean, else "".
std::string as_boolean(const std::string& text) {
  const std::string small = lower(text);
  if (is_one_of(small, {"true", "yes", "on", "1", "y", "t"})) return "true";
  if (is_one_of(small, {"false", "no", "off", "0", "n", "f"})) return "false";
  return "";
}

// Returns the value in the spelling in which it is stored, or "" if it does not have the given
// form.
std::string canonical(Form form, const std::string& text) {
  if (form == Form::kBool) return as_boolean(text);
  if (form == Form::kInt) return compat::decimal_integer(text) ? text : "";
  return text;
}

const char* form_name(Form form) {
  switch (form) {
    case Form::kBool:
      return "true, false";
    case Form::kInt:
      return "an integer in decimal";
    case Form::kString:
      return "a word";
    case Form::kAny:
      break;
  }
  return "any";
}

// Adds the prefix that may be left out: Accelerate reads "fsdp_config.version" as
// "fsdp_config.fsdp_version", and keys of dynamo_config likewise.
std::string with_prefix(const std::string& path) {
  for (const auto& [section, prefix] :
       {std::pair<std::string, std::string>{"fsdp_config.", "fsdp_"},
        {"dynamo_config.", "dynamo_"}}) {
    if (path.starts_with(section) && !path.starts_with(section + prefix))
      return section + prefix + path.substr(section.size());
  }
  return path;
}

}  // namespace

AccelerateConfig::AccelerateConfig(const Options& options) : file_(options.string("config_file")) {
  if (has_file()) read_file(options.content("config_file"));
  read_environment(options.content("environment"));
  drop_unused_sizes();
}

// ---- The file ----

void AccelerateConfig::read_file(std::string_view text) {
  const auto refuse = [&](const std::string& allowed, const std::string& hint) {
    messages_.push_back({"accelerate_compat.config_file", file_, allowed, hint});
  };
  YamlNode root;
  try {
    root = compat::parse_yaml(text);
  } catch (const YamlError& error) {
    return refuse("a YAML map", concat(file_, ", line ", error.line, ": ", error.reason));
  }
  if (root.kind != YamlNode::kMap)
    return refuse("a YAML map", "the file holds no map; `accelerate config` writes one");
  const auto is_unknown = [](const auto& entry) { return find_path(entry.first) == nullptr; };
  if (!root.children.empty() && std::all_of(root.children.begin(), root.children.end(), is_unknown))
    return refuse("a config of Accelerate", "Accelerate has none of the keys of the file");
  read_map(root, "");
  if (in_file_.count("distributed_type") == 0) {
    messages_.push_back({in_file(1, "distributed_type"),
                         "unset",
                         "NO, MULTI_CPU, MULTI_GPU, FSDP, DEEPSPEED",
                         "Accelerate requires it as well"});
  }
}

void AccelerateConfig::read_map(const YamlNode& map, const std::string& path) {
  std::set<std::string> seen;
  for (const auto& [name, node] : map.children) {
    const std::string inner = with_prefix(path.empty() ? name : path + "." + name);
    if (!seen.insert(inner).second) {
      messages_.push_back(
          {in_file(node.line, inner), "given twice", "each key once", "remove one of them"});
    } else if (const Key* key = find_path(inner)) {
      in_file_[inner] = in_file(node.line, inner);
      const bool empty = is_empty(node);
      if (empty || node.kind != YamlNode::kMap || key->handling != Handling::kSection)
        given_.push_back({key, in_file_[inner], empty ? "" : shown_node(node)});
      if (!empty) read_node(*key, inner, node);
    } else {
      messages_.push_back({in_file(node.line, inner),
                           shown_node(node),
                           "a key of Accelerate",
                           "Accelerate has no such key" + did_you_mean(name, siblings(inner))});
    }
  }
}

void AccelerateConfig::read_node(const Key& key, const std::string& path, const YamlNode& node) {
  const std::string label = in_file(node.line, path);
  if (key.handling == Handling::kSection) {
    if (node.kind == YamlNode::kMap) return read_map(node, path);
    messages_.push_back({label, shown_node(node), "a map", "write its keys below it, indented"});
  } else if (node.kind != YamlNode::kScalar) {
    if (key.form == Form::kAny) return apply(key, {shown_node(node), label});
    messages_.push_back({label, shown_node(node), form_name(key.form), "write one value"});
  } else if (key.form == Form::kBool && !node.quoted &&
             !compat::is_cased_word(node.text, lower(node.text))) {
    messages_.push_back({label, node.text, "true, false", "YAML reads this word as a string"});
  } else {
    apply(key, {node.text, label});
  }
}

// ---- The environment ----

void AccelerateConfig::read_environment(std::string_view lines) {
  while (!lines.empty()) {
    const size_t end = std::min(lines.find('\n'), lines.size());
    const std::string_view line = lines.substr(0, end);
    const size_t equals = line.find('=');
    if (equals != line.npos)
      read_variable(std::string(line.substr(0, equals)), std::string(line.substr(equals + 1)));
    lines.remove_prefix(std::min(end + 1, lines.size()));
  }
}

void AccelerateConfig::read_variable(const std::string& name, const std::string& text) {
  // `accelerate launch` writes None for unset values.
  if (text.empty() || text == "None") return;
  const Key* key = find_variable(name);
  if (key == nullptr) {
    messages_.push_back(
        {name,
         text,
         "",
         "no effect: Accelerate has no such variable" + did_you_mean(name, variables()),
         true});
    return;
  }
  const auto file = in_file_.find(key->path);
  if (key->path.empty() || file == in_file_.end()) return apply(*key, {text, name});
  const auto value = values_.find(key->path);
  if (value != values_.end() && value->second.text == canonical(key->form, text)) return;
  if (key->handling != Handling::kHonoured && key->handling != Handling::kRun) return;
  messages_.push_back({name,
                       text,
                       "",
                       "no effect: " + file->second + " has precedence, as under accelerate launch",
                       true});
}

// Accelerate reads the variables of ParallelismConfig only if another variable enables them.
void AccelerateConfig::drop_unused_sizes() {
  if (boolean("ACCELERATE_USE_PARALLELISM_CONFIG").value_or(false)) return;
  for (const Key& key : keys()) {
    const auto value = values_.find(key.name());
    if (value == values_.end() || !value->second.label.starts_with("PARALLELISM_CONFIG_")) continue;
    messages_.push_back({value->second.label,
                         value->second.text,
                         "",
                         "no effect without ACCELERATE_USE_PARALLELISM_CONFIG=true",
                         true});
    values_.erase(value);
  }
}

// ---- File and environment ----

// Checks a value against its row of the table, then stores or reports it.
void AccelerateConfig::apply(const Key& key, const Value& value) {
  const std::string text = canonical(key.form, value.text);
  if (text.empty()) {
    messages_.push_back({value.label, value.text, form_name(key.form), "correct the value"});
  } else if (key.handling == Handling::kHonoured || key.handling == Handling::kRun) {
    values_[std::string(key.name())] = {text, value.label};
  } else if (lower(text) == lower(std::string(key.value))) {
    return;
  } else if (key.handling == Handling::kNoEffect) {
    messages_.push_back(
        {value.label, value.text, "", "no effect here: " + std::string(key.why), true});
  } else {
    messages_.push_back({value.label,
                         value.text,
                         key.value.empty() ? "unset" : std::string(key.value),
                         std::string(key.why)});
  }
}

std::optional<bool> AccelerateConfig::boolean(std::string_view name) const {
  const auto found = values_.find(name);
  const std::string word = found == values_.end() ? "" : as_boolean(found->second.text);
  return word.empty() ? std::nullopt : std::optional(word == "true");
}

std::optional<int64_t> AccelerateConfig::integer(std::string_view name) const {
  const auto found = values_.find(name);
  return found == values_.end() ? std::nullopt
                                : std::optional<int64_t>(std::stoll(found->second.text));
}

std::optional<std::string> AccelerateConfig::string(std::string_view name) const {
  const auto found = values_.find(name);
  return found == values_.end() ? std::nullopt : std::optional(upper(found->second.text));
}

std::string AccelerateConfig::label(std::string_view name) const {
  const auto found = values_.find(name);
  return found == values_.end() ? std::string(name) : found->second.label;
}

std::string AccelerateConfig::shown(std::string_view name) const {
  const auto found = values_.find(name);
  return found == values_.end() ? "unset" : found->second.text;
}

std::string AccelerateConfig::in_file(int line, std::string_view path) const {
  return concat(file_, ":", line, ": ", path);
}

}  // namespace yoke::accelerate_compat
