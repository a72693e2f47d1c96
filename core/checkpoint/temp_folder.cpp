#include "core/checkpoint/temp_folder.hpp"

#include <fcntl.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <cerrno>
#include <cstdio>
#include <filesystem>
#include <random>

#include "core/base/files.hpp"
#include "core/checkpoint/retention.hpp"
#include "yoke/error.hpp"

namespace yoke {
namespace {

constexpr unsigned kExchange = 2;  // RENAME_EXCHANGE, which glibc hides without _GNU_SOURCE

}  // namespace

TempFolder::TempFolder(const std::string& folder, const std::string& name) {
  char suffix[48];
  std::snprintf(
      suffix, sizeof suffix, "%d-%08x", static_cast<int>(::getpid()), std::random_device{}());
  const std::string path = folder + "/" + temporary_name(name) + suffix;
  if (::mkdir(path.c_str(), 0777) != 0) throw_errno("cannot create the folder " + path, errno);
  path_ = path;
}

TempFolder::~TempFolder() {
  try {
    if (!path_.empty()) remove_tree(path_);
  } catch (const Error&) {
  }
}

void TempFolder::commit(const std::string& to) {
  const std::string parent = std::filesystem::path(to).parent_path().string();
  if (::access(to.c_str(), F_OK) != 0) {
    if (::rename(path_.c_str(), to.c_str()) != 0) throw_errno("cannot commit " + to, errno);
    path_.clear();
  } else if (::syscall(SYS_renameat2, AT_FDCWD, path_.c_str(), AT_FDCWD, to.c_str(), kExchange) !=
             0) {
    if (errno != EINVAL && errno != ENOSYS) throw_errno("cannot commit " + to, errno);
    throw Error(
        YOKE_FAILED_PRECONDITION,
        to + " exists and this file system cannot replace a folder in one step; move it away");
  }
  sync_folder(
      parent);  // only then does the destructor remove an old one, now under the temporary name
}

}  // namespace yoke
