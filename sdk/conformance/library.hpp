// A backend's library in this process, loaded without the help of the host's loader.
#pragma once

#include <string>

#include "yoke/parallel_backend.h"

namespace yoke::conformance {

// dlopen with everything resolved at once and nothing exported. Throws Failed with the loader's
// text.
void* open_library(const std::string& path);
YokeEntry find_entry(void* library);

// The table of the library, as entry gives it to a host of this version. Throws Failed.
const ParallelBackend& load_table(const std::string& path);

// A copy of what describe gives; fields that the backend does not know are zero. Throws Failed.
YokeDescription description_of(const ParallelBackend& backend);

}  // namespace yoke::conformance
