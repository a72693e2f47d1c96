// `yoke generate`: continues a text with the model of a checkpoint, or of a folder with a Hugging
// Face model. Runs in one process, without a backend.
#pragma once

#include <string>
#include <vector>

namespace yoke {

// Runs the command; `yoke generate --help` lists the arguments. Prints the text token by token.
// Returns the exit code. Throws Error; Refused for wrong arguments.
int generate(const std::vector<std::string>& args);

}  // namespace yoke
