// yoke config import: a foreign config, as the backend that reads it would put it into a run file.
// One process, no ranks.
#pragma once

#include <string>
#include <vector>

namespace yoke {

// args: FILE [key=value ...]. The backend is parallel_backend of the overrides, else the one whose
// option of type file has a pattern that fits the name of FILE. It is asked for a plan of a small
// model, and its notes hold the lines. Prints a run file; what has no line there becomes a comment.
// Returns the exit code. Throws Refused.
int translate(const std::vector<std::string>& args);

}  // namespace yoke
