// A run file and its data often lie together, while the user is somewhere else. Looking beside the
// file first makes such a run work from everywhere. Run files that were written for the folder in
// which `yoke` is started keep their meaning as long as nothing lies beside them; the other case is
// reported to the user.
#include "core/config/located_path.hpp"

#include <glob.h>

#include <filesystem>

namespace yoke {
namespace {

namespace fs = std::filesystem;

bool is_there(const fs::path& path) {
  std::error_code ignored;
  // Megatron names a dataset without the ".bin".
  if (fs::exists(path, ignored) || fs::exists(path.string() + ".bin", ignored)) return true;
  glob_t found{};
  const bool matches = ::glob(path.c_str(), GLOB_NOSORT, nullptr, &found) == 0;
  ::globfree(&found);
  return matches;
}

}  // namespace

LocatedPath locate(const std::string& folder, const std::string& path) {
  std::error_code ignored;
  const bool here = folder.empty() || fs::equivalent(folder, ".", ignored);
  if (path.empty() || fs::path(path).is_absolute() || here) return {path};
  const fs::path beside = (fs::path(folder) / path).lexically_normal();
  if (!is_there(beside)) return {path};
  LocatedPath found{beside.string()};
  if (is_there(path) && !fs::equivalent(beside, path, ignored))
    found.note =
        found.path + ", beside the run file, is used; the current folder has " + path + " as well";
  return found;
}

}  // namespace yoke
