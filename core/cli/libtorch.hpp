// Makes sure that the worker will find LibTorch, complete and of the right version, before it is
// started. This code itself does not need LibTorch.
#pragma once

#include <string>

namespace yoke {

// If YOKE_TORCH_LIB names the lib folder of LibTorch, puts that folder first on the LD_LIBRARY_PATH
// of this process, which the programs that it starts inherit. Otherwise LibTorch must be in the
// worker's own run path, as it is in a build tree or an installation on the machine that built it.
// Then checks what the dynamic linker would load for `worker`, without running it, which takes some
// milliseconds. Throws Error(FAILED_PRECONDITION), with one sentence, if LibTorch is missing,
// incomplete or of a different version. Changes the environment, so no other thread may run.
void provide_libtorch(const std::string& worker);

}  // namespace yoke
