#include "core/launch/rendezvous_folder.hpp"

#include <sys/file.h>
#include <sys/stat.h>

#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <filesystem>

#include "yoke/error.hpp"

namespace yoke {
namespace {

namespace fs = std::filesystem;

constexpr char kPattern[] = "yoke-XXXXXX";

// The lock is held, if it could be had, as long as the descriptor is open.
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

// A launcher that was killed left its folder, but not its lock.
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
    // Locked before it has the name that others look for.
    lock_ = lock_file(path_ + "/new", O_CREAT | O_EXCL);
    if (lock_.open() && ::rename((path_ + "/new").c_str(), (path_ + "/lock").c_str()) == 0) return;
  }
  throw Error(YOKE_RESOURCE_EXHAUSTED,
              "cannot make a folder " + path_ + " with a locked file: " + std::strerror(errno) +
                  "; set TMPDIR to a folder that you may write to");
}

RendezvousFolder::~RendezvousFolder() {
  std::error_code ignored;  // nothing depends on it any more
  fs::remove_all(path_, ignored);
}

}  // namespace yoke
