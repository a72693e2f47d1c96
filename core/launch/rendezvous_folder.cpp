// A launcher that is killed cannot remove its folder, so the next launcher does. A folder is stale
// if it matches our name pattern, belongs to this user, and its file `lock` is not locked. The
// kernel releases a lock when its process dies. A file with the process number was rejected: such
// numbers are reused, and each container has its own.
#include "core/launch/rendezvous_folder.hpp"

#include <sys/file.h>
#include <sys/stat.h>

#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <filesystem>

#include "yoke/error.hpp"
#include "yoke/text.hpp"

namespace yoke {
namespace {

namespace fs = std::filesystem;

constexpr char kPattern[] = "yoke-XXXXXX";

// Opens and locks a file. The lock is held until the descriptor is closed; the result is not open
// if the file cannot be opened or another process holds the lock.
FileDescriptor lock_file(const std::string& path, int flags) {
  FileDescriptor file(::open(path.c_str(), O_RDWR | O_CLOEXEC | O_NOFOLLOW | flags, 0600));
  if (file.open() && ::flock(file.get(), LOCK_EX | LOCK_NB) != 0) file.reset();
  return file;
}

bool is_ours(const fs::path& path) {
  struct stat info {};
  const std::string name = path.filename().string();
  return name.starts_with("yoke-") && name.size() + 1 == sizeof kPattern &&
         ::lstat(path.c_str(), &info) == 0 && S_ISDIR(info.st_mode) && info.st_uid == ::geteuid();
}

// Removes the folders of launchers that were killed.
void remove_stale(const std::string& parent) {
  std::error_code error;
  for (const auto& entry : fs::directory_iterator(parent, error)) {
    std::error_code ignored;
    if (is_ours(entry.path()) && lock_file(entry.path() / "lock", 0).open())
      fs::remove_all(entry.path(), ignored);
  }
}

}  // namespace

RendezvousFolder::RendezvousFolder() {
  const char* tmp = std::getenv("TMPDIR");
  const std::string parent = tmp != nullptr && tmp[0] == '/' ? tmp : "/tmp";
  remove_stale(parent);
  path_ = parent + "/" + kPattern;
  if (::mkdtemp(path_.data()) != nullptr) {  // mode 0700
    // The file is locked before it gets the name `lock`, so that no other launcher can find it
    // unlocked and remove this folder.
    lock_ = lock_file(path_ + "/new", O_CREAT | O_EXCL);
    if (lock_.open() && ::rename((path_ + "/new").c_str(), (path_ + "/lock").c_str()) == 0) return;
  }
  throw Error(YOKE_RESOURCE_EXHAUSTED,
              concat("cannot create the folder ",
                     path_,
                     " with a locked file: ",
                     std::strerror(errno),
                     "; set TMPDIR to a folder that you may write to"));
}

RendezvousFolder::~RendezvousFolder() {
  std::error_code ignored;  // the next launcher removes a folder that is left behind
  fs::remove_all(path_, ignored);
}

}  // namespace yoke
