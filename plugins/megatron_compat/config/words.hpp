// Reads the words of a Megatron command line from a file: the arguments alone, a shell script that
// runs pretrain_gpt.py, or a recipe of Megatron's tests in YAML. Nothing here knows the arguments.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "yoke/plan_report.hpp"

namespace yoke::megatron_compat {

struct Word {
  std::string text;
  int line;  // line of the file, from 1
};

// The words of a file. launcher: words before the name of the script, such as those of torchrun;
// empty if the file does not name one.
struct CommandLine {
  std::vector<Word> launcher, arguments;
};

// Reads a file of any of the three forms. path: its name, for messages. Problems are added to
// `messages` as refusals; the words are then incomplete. Throws only std::bad_alloc.
CommandLine read_command_line(const std::string& path,
                              std::string_view text,
                              PlanMessages& messages);

}  // namespace yoke::megatron_compat
