#include "plugins/megatron_compat/config/words.hpp"

#include <yaml-cpp/yaml.h>

#include <algorithm>

#include "plugins/megatron_compat/config/shell.hpp"
#include "yoke/text.hpp"

namespace yoke::megatron_compat {
namespace {

// Prints the command that a script would run.
constexpr const char* kCapture =
    "bash -c 'show() { printf \"%q \" \"$@\"; echo; }; torchrun() { show torchrun \"$@\"; }; "
    "python() { show python \"$@\"; }; python3() { show python3 \"$@\"; }; "
    "export -f show torchrun python python3; bash ";

// Returns whether a line of the text begins with this key.
bool has_key(std::string_view text, std::string_view key) {
  return text.starts_with(key) || text.find(concat("\n", key)) != std::string_view::npos;
}

// A file that cannot be read is a wrong value of the option that names it.
PlanMessage refusal(const std::string& path, int line, std::string_view given, std::string hint) {
  return {"megatron_compat.args_file",
          concat(path, ":", line, ": ", given),
          "the arguments of pretrain_gpt.py, a simple shell script, or a recipe with MODEL_ARGS",
          std::move(hint),
          false};
}

// Returns the words behind the first one that names a Python script.
CommandLine cut_at_script(std::vector<Word> words) {
  const auto script = std::find_if(
      words.begin(), words.end(), [](const Word& w) { return w.text.ends_with(".py"); });
  if (script == words.end()) return {{}, std::move(words)};
  return {{words.begin(), script}, {script + 1, words.end()}};
}

CommandLine of_script(const std::string& path, std::string_view text, PlanMessages& messages) {
  std::vector<ShellProblem> problems;
  std::vector<Word> words = read_shell(text, problems);
  for (const ShellProblem& p : problems) {
    if (p.is_script) {
      messages.push_back(refusal(
          path,
          p.line,
          concat("a script that ", p.what),
          concat(
              "write its arguments to a file and use that: ", kCapture, path, "' > script.args")));
    } else {
      messages.push_back(refusal(path,
                                 p.line,
                                 concat("a file of arguments that ", p.what),
                                 "every argument begins with --, and its values follow it in the "
                                 "same line"));
    }
  }
  return cut_at_script(std::move(words));
}

// A recipe maps each argument to its value, to true for a switch, or to a list. false leaves a
// switch out.
CommandLine of_recipe(const std::string& path, std::string_view text, PlanMessages& messages) {
  CommandLine line;
  const YAML::Node root = YAML::Load(std::string(text));
  const YAML::Node recipe = root["MODEL_ARGS"];
  if (!recipe.IsMap()) {
    messages.push_back(refusal(path, 1, "MODEL_ARGS without keys", "write --flag: value below it"));
    return line;
  }
  for (const auto& entry : recipe) {
    const int at = entry.first.Mark().line + 1;
    const auto name = entry.first.as<std::string>();
    if (entry.second.IsMap()) {
      messages.push_back(refusal(path, at, name, "its value must be one word or a list"));
      continue;
    }
    std::vector<std::string> values;
    if (entry.second.IsSequence()) {
      values = entry.second.as<std::vector<std::string>>();
    } else if (!entry.second.IsNull()) {
      values = {entry.second.as<std::string>()};
    }
    if (values == std::vector<std::string>{"false"}) continue;
    line.arguments.push_back({name, at});
    if (values == std::vector<std::string>{"true"}) continue;
    for (std::string& value : values) {
      if (value.find("${") != std::string::npos)
        messages.push_back(refusal(path, at, value, "replace the variable by its value"));
      line.arguments.push_back({std::move(value), at});
    }
  }
  return line;
}

}  // namespace

CommandLine read_command_line(const std::string& path,
                              std::string_view text,
                              PlanMessages& messages) {
  try {
    if (has_key(text, "MODEL_ARGS:")) return of_recipe(path, text, messages);
    if (has_key(text, "language_model:") || text.find("_target_:") != std::string_view::npos) {
      const bool is_bridge = text.find("_target_:") != std::string_view::npos;
      messages.push_back(refusal(
          path,
          1,
          is_bridge ? "a configuration of Megatron Bridge (_target_)" : "a file for --yaml-cfg",
          "Megatron removed --yaml-cfg, and Bridge has its own classes; "
          "write the arguments of pretrain_gpt.py"));
      return {};
    }
    return of_script(path, text, messages);
  } catch (const YAML::Exception& e) {
    messages.push_back(refusal(path, e.mark.line + 1, e.msg, "correct the YAML"));
    return {};
  }
}

}  // namespace yoke::megatron_compat
