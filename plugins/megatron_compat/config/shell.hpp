// A reader of simple shell scripts: assignments, arrays, and one command that runs a Python script.
// It runs nothing. Constructs that only a shell can evaluate are reported where their result is
// needed.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "plugins/megatron_compat/config/words.hpp"

namespace yoke::megatron_compat {

// What the reader could not evaluate. The text completes "a script that ..." or, if the file is not
// a script, "a file of arguments that ...".
struct ShellProblem {
  int line;
  std::string what;
  bool is_script = true;
};

// Returns the words of the command that runs a Python script, with all variables expanded, or, in a
// file without such a command, those of the first command that begins with an option ("--x").
// Variables that the script does not set count as unset, so "${X:-d}" is d. Returns no words and
// adds a problem if there is no such command, or a word of it cannot be evaluated.
std::vector<Word> read_shell(std::string_view text, std::vector<ShellProblem>& problems);

}  // namespace yoke::megatron_compat
