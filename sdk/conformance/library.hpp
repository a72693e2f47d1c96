// Loads the library of a backend into this process. The host's loader is not used: the checks must
// see every fault themselves.
#pragma once

#include <string>

#include "yoke/parallel_backend.h"

namespace yoke::conformance {

// Calls dlopen with RTLD_NOW and RTLD_LOCAL. Throws Failed with the text of the dynamic loader.
void* open_library(const std::string& path);
// Returns the entry function. Throws Failed if the library does not export it.
YokeEntry find_entry(void* library);

// Loads the library and returns the function table that entry gives to a host of this version.
// Throws Failed.
const ParallelBackend& load_table(const std::string& path);

// Returns a copy of the description. Fields that the backend does not know are zero. Throws Failed.
YokeDescription description_of(const ParallelBackend& backend);

}  // namespace yoke::conformance
