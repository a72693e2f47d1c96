// The program that does the work of `yoke`: yoke-worker, or the user's own worker.
#pragma once

#include <string>
#include <vector>

namespace yoke {

// Returns the path of yoke-worker in the folder of this program.
std::string default_worker();

// Returns the path of the worker: the key `worker` of a run file, or default_worker() if that is
// "". Also prepares LibTorch for it (libtorch.hpp), and lets its memory use huge pages, unless
// GLIBC_TUNABLES decides on them; both change the environment of this process. Throws
// Error(FAILED_PRECONDITION) if the worker cannot be started.
std::string find_worker(const std::string& configured);

// Replaces this process by the program argv[0]. Returns only if that fails, with a message printed
// and the exit code.
int exec_worker(const std::vector<std::string>& argv);

}  // namespace yoke
