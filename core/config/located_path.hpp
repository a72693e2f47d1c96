// Paths in a run file, which may be relative to the file.
#pragma once

#include <string>

namespace yoke {

struct LocatedPath {
  std::string path;
  std::string note{};  // sentence for the user if the current folder has another file of this name
};

// Returns where a path of a run file in `folder` is: beside the run file if it exists there, and
// otherwise unchanged, that is, relative to the current folder. The path may be a pattern, which
// exists if a file matches it. An empty `folder` is the current one.
LocatedPath locate(const std::string& folder, const std::string& path);

}  // namespace yoke
