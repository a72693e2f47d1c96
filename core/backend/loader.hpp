// Brings a backend into this process. No LibTorch; Boost.DLL stays inside the .cpp.
#pragma once

#include <string>

#include "core/backend/loaded_backend.hpp"

namespace yoke {

// Loads the library at an absolute path (of find_backend) and checks its table. Looks at the file
// first: what cannot be loaded is refused before anything of it runs. The library stays loaded for
// the life of the process; a second call for the same file gives the same backend. Any thread.
// Throws Error with path, stage, reason, both versions and what to do; callers exit with 3.
LoadedBackend load_backend(const std::string& path);

}  // namespace yoke
