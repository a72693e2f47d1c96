// The commit of a checkpoint is one rename, because a rename of a folder is atomic: a reader sees
// the old state or the new one, whatever happens. Everything in the folder is synced before it,
// else the new name could survive a power failure and the contents not. The folder that contains
// the name is synced after it.

#include "core/checkpoint/temp_folder.hpp"

#include <fcntl.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <cerrno>
#include <filesystem>
#include <random>

#include "core/base/files.hpp"
#include "core/checkpoint/retention.hpp"
#include "yoke/error.hpp"
#include "yoke/text.hpp"

namespace yoke {
namespace {

constexpr unsigned kExchange = 2;  // RENAME_EXCHANGE, which glibc hides without _GNU_SOURCE

}  // namespace

TempFolder::TempFolder(const std::string& folder, const std::string& name) {
  const std::string path =
      folder + "/" + temporary_name(name) +
      string_printf("%d-%08x", static_cast<int>(::getpid()), std::random_device{}());
  if (::mkdir(path.c_str(), 0777) != 0) throw_errno("cannot create the folder " + path, errno);
  path_ = path;
}

TempFolder::~TempFolder() {
  try {
    if (!path_.empty()) remove_tree(path_);
  } catch (const Error&) {  // a destructor must not throw; the next save sweeps the folder
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
        to + " exists, and this file system cannot replace a folder atomically; move it away");
  }
  // The old checkpoint, if there was one, now has the temporary name. The destructor removes it,
  // which must not happen before the new one is durable.
  sync_folder(parent);
}

}  // namespace yoke
