// LibTorch for the worker: there, complete and of the right version, before anything is started.
// This file itself needs none.
#pragma once

#include <string>

namespace yoke {

// YOKE_TORCH_LIB names LibTorch's lib folder; unset, the worker knows it (in a build tree, in an
// install on the machine that built it). Puts that folder first on the LD_LIBRARY_PATH of this
// process, and so of all that it starts, then looks what `worker` would load, without running it:
// some milliseconds. Throws Error(FAILED_PRECONDITION), one sentence, if LibTorch is missing,
// incomplete or of another version. Not to be called beside other threads.
void provide_libtorch(const std::string& worker);

}  // namespace yoke
