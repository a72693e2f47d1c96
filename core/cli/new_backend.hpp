// yoke backends new NAME: a folder with a backend that builds outside the tree and passes the
// checks.
#pragma once

#include <string>

namespace yoke {

// Writes ./NAME/. language: c | cpp | torch. Throws Error(INVALID_ARGUMENT) for a name that a
// backend cannot have, FAILED_PRECONDITION if the folder exists or the templates are not installed.
// Returns the exit code; prints what to do next.
int new_backend(const std::string& name, const std::string& language);

}  // namespace yoke
