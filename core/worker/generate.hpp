// yoke generate: continues a text with the model of a checkpoint or of a folder of Hugging Face's.
// One process, no backend.
#pragma once

#include <string>
#include <vector>

namespace yoke {

// args: CHECKPOINT --prompt TEXT [--tokens N] [--temperature T] [--seed S]. Prints the text as it
// comes. Returns the exit code. Throws Error; Refused for wrong arguments.
int generate(const std::vector<std::string>& args);

}  // namespace yoke
