// Cuts a shell script into commands, and commands into words. Nothing is expanded or evaluated.
#pragma once

#include <string>
#include <string_view>
#include <vector>

namespace yoke::megatron_compat {

// A word as it is written, quotes included.
struct RawWord {
  std::string text;
  int line;  // line of the text, from 1
};
using ShellCommand = std::vector<RawWord>;

// Returns the commands of a text; each has at least one word.
std::vector<ShellCommand> split_commands(std::string_view text);
// Returns whether a character separates words. A newline separates commands.
bool is_space(char c);

}  // namespace yoke::megatron_compat
