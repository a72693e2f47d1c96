// `yoke config import`: prints a config file of another program as a run file of Yoke. Runs in one
// process, without ranks.
#pragma once

#include <string>
#include <vector>

namespace yoke {

// Runs the command. args: FILE [key=value ...]. The overrides may choose the backend that reads the
// file with parallel_backend. Otherwise it is the one with an option of type file whose pattern
// matches the name of FILE. The backend makes a plan for a small model, and its notes are the lines
// of the run file. Settings without such a line become comments. Returns the exit code. Throws
// Refused.
int import_config(const std::vector<std::string>& args);

}  // namespace yoke
