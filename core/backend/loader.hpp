// Loads a backend into this process. No LibTorch; only loader.cpp includes Boost.DLL.
#pragma once

#include <string>

#include "core/backend/loaded_backend.hpp"

namespace yoke {

// Loads the library at `path`, an absolute path from find_backend(), and checks its table. The file
// is examined first, so that a broken one is refused before any of its code runs. The library is
// never unloaded; a second call for the same file returns the same backend. Thread-safe. Throws
// Error with the text that reject.hpp describes; callers exit with 3.
LoadedBackend load_backend(const std::string& path);

}  // namespace yoke
