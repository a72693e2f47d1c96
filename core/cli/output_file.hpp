// Files that the user names for results.
#pragma once

#include <string>

namespace yoke {

// Checks that a file can be created or overwritten, and leaves it as it was. Commands call it
// before their work, so that a wrong path is not reported after hours. flag: the option that names
// the file. path: "" = no file, which is allowed. Throws Stop{kExitUsage} if it cannot be written.
void require_writable(const char* flag, const std::string& path);

}  // namespace yoke
