// `yoke config import`: prints a config file of another program as a run file of Yoke. Runs in one
// process, without ranks.
#pragma once

#include <string>
#include <vector>

namespace yoke {

// Runs the command. args: FILE [key=value ...], and --partial anywhere. An override of
// parallel_backend chooses the backend that reads the file. Without an override, the file is read
// by the backend that has an option of type file whose pattern matches the name of FILE. If there
// are several, it is the only one that does not refuse this option, which a backend does if the
// file is not of its program. The backend makes a plan for a small model, and its notes are the
// lines of the run file. Settings without effect become comments.
//
// A file with keys that cannot be honoured is refused, with all of these keys, and nothing is
// printed. With --partial they become comments as well. Returns the exit code. Throws Refused.
int import_config(const std::vector<std::string>& args);

}  // namespace yoke
