// nanotron reads its files with PyYAML and dacite in its strict mode. A key that it does not know
// is an error there, and so is a value of another type, such as 3e-4, which YAML 1.1 reads as a
// word. Both are refused here as well, with the nearest name or the right spelling.
#include "plugins/nanotron_compat/config/config.hpp"

#include <deque>
#include <string_view>

#include "sdk/compat/batch_loss.hpp"
#include "sdk/compat/number.hpp"
#include "sdk/compat/run_lines.hpp"
#include "yoke/nearest.hpp"
#include "yoke/text.hpp"

namespace yoke::nanotron_compat {
namespace {

using compat::Form;
using compat::YamlNode;

constexpr std::string_view kOldData = "data", kStage = "data_stages[]";

// Keys that every file must have. Those of AdamW follow in require_keys().
constexpr const char* kRequired[] = {"parallelism.dp",
                                     "parallelism.tp",
                                     "parallelism.pp",
                                     "tokens.sequence_length",
                                     "tokens.train_steps",
                                     "tokens.micro_batch_size",
                                     "tokens.batch_accumulation_per_replica",
                                     "optimizer.zero_stage",
                                     "optimizer.weight_decay",
                                     "optimizer.clip_grad",
                                     "optimizer.accumulate_grad_in_fp32",
                                     "optimizer.learning_rate_scheduler.learning_rate",
                                     "optimizer.learning_rate_scheduler.lr_warmup_style"};

// Returns "true" or "false" for a word that PyYAML reads as a boolean, else "".
std::string as_boolean(const YamlNode& node) {
  const auto is = [&](const char* word) {
    return !node.quoted && compat::is_cased_word(node.text, word);
  };
  if (is("true") || is("yes") || is("on")) return "true";
  return is("false") || is("no") || is("off") ? "false" : "";
}

// Returns whether PyYAML reads a text as a number: with an exponent it needs a dot and a sign. The
// text is scanned by hand, because std::regex_match recurses for each character of a long text.
bool is_yaml_number(std::string_view text) {
  const auto take = [&](std::string_view any_of) {
    const bool taken = !text.empty() && any_of.find(text.front()) != any_of.npos;
    if (taken) text.remove_prefix(1);
    return taken;
  };
  const auto take_digits = [&] {
    bool any = false;
    while (take("0123456789")) any = true;
    return any;
  };
  take("-");
  const bool whole = take_digits(), dot = take("."), fraction = dot && take_digits();
  if (!whole && !fraction) return false;
  if (dot && take("eE") && !(take("+-") && take_digits())) return false;
  return text.empty();
}

// Returns a value in the spelling in which it is stored, or "" if PyYAML does not read it as a
// value of this form.
std::string canonical(Form form, const YamlNode& node) {
  if (form == Form::kBool) return as_boolean(node);
  if (form == Form::kInt && (node.quoted || !compat::decimal_integer(node.text))) return "";
  if (form == Form::kNumber && (node.quoted || !is_yaml_number(node.text))) return "";
  return node.text;
}

std::string spelling_hint(const Key& key, const YamlNode& node) {
  const auto number = compat::parsed<double>(node.text);
  if (key.form != Form::kNumber || !number) return concat("it takes ", compat::form_text(key.form));
  if (node.quoted) return "in quotes it is a word; remove them";
  return concat("YAML reads it as a word; write it with a dot and a signed exponent, such as ",
                string_printf("%.1e", *number));
}

}  // namespace

Config::Config(const Options& options)
    : ForeignConfig(std::string(options.string("config")), find_key) {
  if (has_file()) read_file(options.content("config"));
  read_options(options);
}

// ---- The file ----

void Config::read_file(std::string_view text) {
  const auto refuse_file = [&](const std::string& hint) {
    messages_.push_back({"nanotron_compat.config", file_, "a YAML file of nanotron", hint});
    file_.clear();  // nothing of it means a default
  };
  YamlNode root;
  try {
    root = compat::parse_yaml(text);
  } catch (const compat::YamlError& error) {
    return refuse_file(concat(file_, ", line ", error.line, ": ", error.reason));
  }
  if (root.kind != YamlNode::kMap) return refuse_file("the file holds no map of keys");
  bool is_of_nanotron = false;
  for (const auto& [name, node] : root.children)
    is_of_nanotron |= name == "parallelism" || name == "tokens";
  if (!is_of_nanotron)
    return refuse_file("the file has neither of the sections parallelism and tokens");
  read_map(root, "");
  check_version();
  require_keys();
}

void Config::read_map(const YamlNode& map, const std::string& path) {
  std::set<std::string> names;
  for (const auto& [name, node] : map.children) {
    const std::string inner = path.empty() ? name : concat(path, ".", name);
    if (names.insert(name).second) {
      read_node(inner, node);
    } else {
      messages_.push_back(
          {in_file(node.line, inner), "given twice", "each key once", "remove one of them"});
    }
  }
}

void Config::read_node(const std::string& path, const YamlNode& node) {
  const std::string label = in_file(node.line, path);
  is_old_data_ |= path == kOldData;
  const bool is_old = path == kOldData || path.starts_with("optimizer.adam_") ||
                      path == "optimizer.torch_adam_is_fused";
  if (is_old) of_old_ = label;
  if (path == "data_stages" || path == "optimizer.optimizer_factory") of_new_ = label;
  if (path == "data_stages") return read_stages(node);
  const std::string known = path == kOldData ? concat(kStage, ".data") : path;
  if (const Key* key = find_key(known)) {
    seen_.insert(known);
    if (!is_empty(node)) read_value(*key, node);
  } else if (!is_section(known)) {
    const size_t dot = path.rfind('.') + 1;
    messages_.push_back(
        {label,
         compat::shown_node(node),
         "a key of nanotron",
         concat("nanotron has no such key", did_you_mean(path.substr(dot), siblings(known)))});
  } else if (node.kind == YamlNode::kMap) {
    read_map(node, known);
  } else if (!is_empty(node)) {
    messages_.push_back(
        {label, compat::shown_node(node), "a map", "write its keys below it, indented"});
  }
}

// A run has one stage of data.
void Config::read_stages(const YamlNode& stages) {
  if (stages.kind != YamlNode::kList) {
    messages_.push_back({in_file(stages.line, "data_stages"),
                         compat::shown_node(stages),
                         "a list of maps",
                         "write one stage, which begins with a hyphen"});
    return;
  }
  for (size_t i = 0; i < stages.children.size(); ++i) {
    const YamlNode& stage = stages.children[i].second;
    if (i > 0) {
      messages_.push_back({in_file(stage.line, concat("data_stages[", i, "]")),
                           compat::shown_node(stage),
                           "one stage",
                           "a run has one stage of data; import every stage as a run of its own, "
                           "which continues the one before"});
    } else if (stage.kind == YamlNode::kMap) {
      read_map(stage, std::string(kStage));
    }
  }
}

void Config::read_value(const Key& key, const YamlNode& node) {
  Given given{{}, in_file(node.line, key.name)};
  if (node.kind == YamlNode::kList) {
    for (const auto& entry : node.children)
      given.values.push_back(compat::shown_node(entry.second));
  } else if (node.kind == YamlNode::kMap) {
    given.values = {compat::shown_node(node)};
  } else if (key.form == Form::kWord || key.form == Form::kWords) {
    given.values = {node.text};
  } else if (const std::string text = canonical(key.form, node); !text.empty()) {
    given.values = {text};
  } else {
    given.values = {node.text};
    return refuse(given, compat::form_text(key.form), spelling_hint(key, node));
  }
  if (key.name == "optimizer.weight_decay_exclude_named_params") excluded_ = given.values;
  take(key, given);
}

void Config::check_version() {
  if (!of_old_.empty() && !of_new_.empty()) {
    messages_.push_back({of_old_,
                         "a key of nanotron 0.4",
                         "keys of one version",
                         concat("later versions do not have it, and 0.4 does not have ", of_new_)});
  } else if (!of_old_.empty()) {
    messages_.push_back({of_old_,
                         "nanotron 0.4",
                         "",
                         "the file is read as one of nanotron 0.4; later versions have other keys "
                         "for data and AdamW",
                         true});
  }
}

void Config::require_keys() {
  std::vector<std::string> missing;
  const auto require = [&](const std::string& path) {
    if (seen_.count(path) == 0) missing.push_back(path);
  };
  for (const char* path : kRequired) require(path);
  if (word("optimizer.optimizer_factory.name") == "adamW") {
    for (const char* name : {"adam_beta1", "adam_beta2", "adam_eps"}) require(adam_key(name));
  }
  if (missing.empty()) return;
  messages_.push_back({concat(file_, ": ", missing.front()),
                       "unset",
                       join(missing),
                       "nanotron requires these keys; add them"});
}

std::string Config::adam_key(std::string_view name) const {
  return concat(of_old_.empty() ? "optimizer.optimizer_factory." : "optimizer.", name);
}

// Keys below `data` of an older file are shown as they are there.
std::string Config::in_file(int line, std::string_view path) const {
  if (is_old_data_ && path.starts_with(kStage)) path.remove_prefix(kStage.size() + 1);
  return concat(file_, ":", line, ": ", path);
}

// ---- The run file ----

// An option of the run file may repeat a key of the file, but not change it.
void Config::read_options(const Options& options) {
  for (const Key& key : honoured_keys()) {
    const std::string name = option_name(key);
    if (!options.given(name)) continue;
    const std::string value = key.form == Form::kBool ? compat::boolean_text(options.boolean(name))
                              : key.form == Form::kWord ? std::string(options.string(name))
                                                        : std::to_string(options.integer(name));
    take(key, {{value}, "nanotron_compat." + name});
  }
}

const std::vector<const YokeOptionInfo*>& option_infos() {
  static const std::deque<std::string> names = [] {
    std::deque<std::string> list;
    for (const Key& key : honoured_keys()) list.push_back(option_name(key));
    return list;
  }();
  static const std::vector<YokeOptionInfo> rows = [] {
    std::vector<YokeOptionInfo> list{
        option_info(
            YOKE_OPTION_FILE, "config", "", "*.yaml|*.yml", "configuration file of nanotron"),
        option_info(
            YOKE_OPTION_STRING,
            "loss",
            "",
            compat::kLossNames,
            "mean over all targets, or mean of the means of micro-batches (even: only while "
            "both are equal); default: per_token, or even with a file")};
    for (size_t i = 0; i < honoured_keys().size(); ++i) {
      const Key& key = honoured_keys()[i];
      const bool is_bool = key.form == Form::kBool, is_word = key.form == Form::kWord;
      const OptionRange range = is_bool || is_word         ? OptionRange{}
                                : names[i] == "zero_stage" ? OptionRange{0, 1}
                                                           : OptionRange{1, 1e6};
      list.push_back(option_info(is_bool   ? YOKE_OPTION_BOOL
                                 : is_word ? YOKE_OPTION_STRING
                                           : YOKE_OPTION_INT,
                                 names[i],
                                 "",
                                 is_word ? key.accepted : "",
                                 key.why,
                                 range));
    }
    return list;
  }();
  static const auto pointers = pointers_to(rows);
  return pointers;
}

}  // namespace yoke::nanotron_compat
