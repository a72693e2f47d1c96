// yoke trace RUN [-o FILE]
#pragma once

#include <string>
#include <vector>

namespace yoke {

// Runs the command; `args` are the words after `trace`. Returns the exit code.
int trace_command(const std::vector<std::string>& args);

}  // namespace yoke
