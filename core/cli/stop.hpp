#pragma once

#include <string>

namespace yoke {

// Thrown to end a command with a message and an exit code.
struct Stop {
  int exit_code;
  std::string text;  // "" = nothing more to print
};

}  // namespace yoke
