// yoke backends new NAME: creates a folder with a backend that builds outside the tree and passes
// the conformance checks.
#pragma once

#include <string>

namespace yoke {

// Creates ./NAME/ and prints what to do next. `language` is c, cpp or torch. Returns the exit code.
// Throws Error: INVALID_ARGUMENT for an invalid name or language, FAILED_PRECONDITION if the folder
// exists or the templates are not installed.
int new_backend(const std::string& name, const std::string& language);

}  // namespace yoke
