// Files that the user names for results.
#pragma once

#include <string>
#include <string_view>

namespace yoke {

// Checks that a file can be created or overwritten, and leaves it as it was. Commands call it
// before their work, so that a wrong path is not reported after hours. flag: the option that names
// the file. path: "" = no file, which is allowed. Throws Stop{kExitUsage} if it cannot be written.
void require_writable(const char* flag, const std::string& path);

// Writes a result: replaces a regular file atomically, or the file that a symbolic link refers to,
// and appends to anything else. path: "" = no file. Throws Error.
void write_output(const std::string& path, std::string_view text);

}  // namespace yoke
