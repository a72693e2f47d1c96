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

// Words up to the next end of a command, at least one. "if", "then" and the like are words.
struct ShellCommand {
  std::vector<RawWord> words;    // without redirections
  bool is_chained = false;       // whether it follows "&&" or "||"
  bool has_redirection = false;  // whether it has "<" or ">" outside of quotes
};

// Returns the commands of a text, without the patterns of a "case".
std::vector<ShellCommand> split_commands(std::string_view text);
// Returns whether a character separates words. A newline separates commands.
bool is_space(char c);

}  // namespace yoke::megatron_compat
