// The program behind `yoke`: yoke-worker, or the user's own.
#pragma once

#include <string>
#include <vector>

namespace yoke {

// yoke-worker in the folder of this program.
std::string default_worker();

// `worker` of a run file, else default_worker(), with LibTorch provided for. Throws
// Error(FAILED_PRECONDITION) if it is not a program that can be started.
std::string find_worker(const std::string& configured);

// Becomes the program argv[0]. Returns, with an exit code and a message printed, only if that
// fails.
int exec_worker(const std::vector<std::string>& argv);

}  // namespace yoke
