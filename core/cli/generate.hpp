// yoke generate CHECKPOINT --prompt "..." [--tokens N] [--temperature T] [--seed S]
#pragma once

#include <string>
#include <vector>

namespace yoke {

// args: the words after `generate`; yoke-worker reads them. Becomes the worker; returns only on
// failure.
int generate_command(const std::vector<std::string>& args);

}  // namespace yoke
