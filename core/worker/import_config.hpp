// `yoke config import`: prints a config file of another program as a run file of Yoke. Runs in one
// process, without ranks.
#pragma once

#include <string>
#include <vector>

namespace yoke {

// args: FILE [key=value ...]. The backend that reads the file is parallel_backend of the overrides,
// or else the one that has an option of type file with a pattern that matches the name of FILE. The
// backend makes a plan for a small model, and its notes are the lines of the run file. Settings
// without such a line become comments. Returns the exit code. Throws Refused.
int import_config(const std::vector<std::string>& args);

}  // namespace yoke
