// yoke generate CHECKPOINT --prompt "..." [--tokens N] [--temperature T] [--seed S]
#pragma once

#include <string>
#include <vector>

namespace yoke {

// Runs the command. `args` are the words after `generate`, which yoke-worker reads. Replaces this
// process by the worker, so it returns only for --help and after an error, with the exit code.
int generate_command(const std::vector<std::string>& args);

}  // namespace yoke
