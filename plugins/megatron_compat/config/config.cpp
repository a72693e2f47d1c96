// Megatron takes arguments as "--name value", "--name=value" and "--name value value". No value
// begins with "--", so a command line can be cut into arguments without knowing how many values
// each takes.
//
// An argument that the file leaves out has Megatron's default, which may be another model: without
// --normalization, for example, the model has LayerNorm. Such defaults are refused, all in one
// message.
#include "plugins/megatron_compat/config/config.hpp"

#include <algorithm>
#include <deque>

#include "sdk/compat/batch_loss.hpp"
#include "sdk/compat/number.hpp"
#include "yoke/nearest.hpp"
#include "yoke/text.hpp"

namespace yoke::megatron_compat {

Config::Config(const Options& options)
    : ForeignConfig(std::string(options.string("args_file")), find_argument) {
  if (has_file()) read_file(options.content("args_file"));
  read_options(options);
  if (has_file()) require_defaults();
}

void Config::read_file(std::string_view text) {
  const CommandLine line = read_command_line(file_, text, messages_);
  read_launcher(line.launcher);
  const std::vector<Word>& words = line.arguments;
  for (size_t i = 0; i < words.size();) {
    const std::string& first = words[i].text;
    const std::string label = concat(file_, ":", words[i].line);
    ++i;
    if (!first.starts_with("--")) {
      messages_.push_back({label, first, "an argument, --name", "no argument precedes this value"});
      continue;
    }
    const size_t equals = first.find('=');
    Given given{{}, concat(label, ": ", first.substr(0, equals))};
    if (equals != std::string::npos) given.values.push_back(first.substr(equals + 1));
    while (equals == std::string::npos && i < words.size() && !words[i].text.starts_with("--"))
      given.values.push_back(words[i++].text);
    read_argument(first.substr(0, equals), label, given);
  }
}

// The launcher of a script decides how many processes train: torchrun --nnodes 2 --nproc_per_node
// 8.
void Config::read_launcher(const std::vector<Word>& words) {
  int64_t machines = 1;
  std::optional<int64_t> each;
  for (size_t i = 0; i < words.size(); ++i) {
    const std::string& text = words[i].text;
    const size_t equals = text.find('=');
    std::string name = text.substr(0, equals);
    std::replace(name.begin(), name.end(), '_', '-');
    const std::string value = equals != std::string::npos ? text.substr(equals + 1)
                              : i + 1 < words.size()      ? words[i + 1].text
                                                          : "";
    if (name == "--nproc-per-node") each = compat::parsed<int64_t>(value);
    if (name == "--nnodes") machines = compat::parsed<int64_t>(value).value_or(0);
  }
  if (each && *each > 0 && machines > 0) launched_ = machines * *each;
}

void Config::read_argument(const std::string& name, const std::string& label, const Given& given) {
  const Argument* argument = find_argument(name);
  if (argument == nullptr) {
    messages_.push_back(
        {label, name, "", "Megatron has no such argument" + did_you_mean(name, spellings())});
    return;
  }
  take(*argument, given);
}

// An option of the run file may repeat an argument of the file, but not change it.
void Config::read_options(const Options& options) {
  for (const Argument& argument : honoured_arguments()) {
    const std::string name = option_name(argument);
    if (!options.given(name)) continue;
    const std::string label = "megatron_compat." + name;
    if (argument.form == Form::kSwitch) {
      const bool on = options.boolean(name);
      if (on) {
        take(argument, {{}, label});
      } else if (is_given(argument.name)) {
        refuse({{"false"}, label},
               "true",
               concat(Config::label(argument.name), " sets it; remove one of them"));
      }
    } else if (argument.form == Form::kInt) {
      take(argument, {{std::to_string(options.integer(name))}, label});
    } else {
      take(argument, {{std::string(options.string(name))}, label});
    }
  }
}

void Config::require_defaults() {
  std::vector<std::string> missing;
  for (const Argument& argument : run_arguments()) {
    const bool needs_it = !argument.accepted.empty() && !argument.otherwise.empty() &&
                          !accepts(argument, argument.otherwise);
    const bool is_rope = argument.name == "--position-embedding-type" &&
                         is_given("--use-rotary-position-embeddings");
    if (!needs_it || is_given(argument.name) || is_rope) continue;
    std::string text(argument.name);
    if (argument.form != Form::kSwitch) text += concat(" ", argument.accepted);
    missing.push_back(std::move(text));
  }
  if (missing.empty()) return;
  messages_.push_back(
      {concat(file_, ": ", missing.front().substr(0, missing.front().find(' '))),
       "unset",
       join(missing, " "),
       "the defaults of Megatron are another model than Yoke's; add these arguments"});
}

// ---- Options ----

const std::vector<const YokeOptionInfo*>& option_infos() {
  static const std::deque<std::string> texts = [] {
    std::deque<std::string> list;
    for (const Argument& argument : honoured_arguments()) list.push_back(option_name(argument));
    return list;
  }();
  static const std::vector<YokeOptionInfo> rows = [] {
    std::vector<YokeOptionInfo> list{
        option_info(
            YOKE_OPTION_FILE,
            "args_file",
            "",
            "*.sh|*.args",
            "arguments of Megatron's pretrain_gpt.py: alone, in a shell script, or a recipe"),
        option_info(
            YOKE_OPTION_STRING,
            "loss",
            "",
            compat::kLossNames,
            "mean over all targets, or mean of the means of micro-batches (even: only while "
            "both are equal); default: by --calculate-per-token-loss")};
    for (size_t i = 0; i < honoured_arguments().size(); ++i) {
      const Argument& argument = honoured_arguments()[i];
      const bool is_switch = argument.form == Form::kSwitch, is_int = argument.form == Form::kInt;
      const OptionRange range = is_int ? OptionRange{1, 1e15} : OptionRange{};
      list.push_back(option_info(
          is_switch ? YOKE_OPTION_BOOL : (is_int ? YOKE_OPTION_INT : YOKE_OPTION_STRING),
          texts[i],
          "",
          is_switch || is_int ? "" : argument.accepted,
          argument.why,
          range));
    }
    return list;
  }();
  static const auto pointers = pointers_to(rows);
  return pointers;
}

}  // namespace yoke::megatron_compat
