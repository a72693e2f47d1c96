// Every system call is retried after EINTR where the call allows it, and its error becomes an Error
// with the path. std::filesystem is used only where nothing must be durable: it offers no fsync, no
// positional transfers and no exclusive creation.
#include "core/base/files.hpp"

#include <fcntl.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <filesystem>
#include <limits>
#include <system_error>
#include <utility>
#include <vector>

#include "yoke/error.hpp"
#include "yoke/text.hpp"

namespace yoke {
namespace {

namespace fs = std::filesystem;

int32_t code_of(int error_number) {
  switch (error_number) {
    case ENOENT:
    case ENOTDIR:
      return YOKE_NOT_FOUND;
    case EACCES:
    case EPERM:
    case EROFS:
      return YOKE_FAILED_PRECONDITION;
    case ENOSPC:
    case EDQUOT:
    case ENOMEM:
    case EMFILE:
    case ENFILE:
      return YOKE_RESOURCE_EXHAUSTED;
    case EIO:
      return YOKE_DATA_LOSS;
    default:
      return YOKE_INTERNAL;
  }
}

int open_or_throw(const std::string& path, int flags, const char* what) {
  int fd;
  do {
    fd = ::open(path.c_str(), flags | O_CLOEXEC, 0666);
  } while (fd < 0 && errno == EINTR);
  if (fd < 0) throw_errno(std::string("cannot ") + what + " " + path, errno);
  return fd;
}

std::string parent_of(const std::string& path) {
  const std::string parent = fs::path(path).parent_path().string();
  return parent.empty() ? "." : parent;
}

}  // namespace

void throw_errno(const std::string& what, int error_number) {
  throw Error(code_of(error_number), what + ": " + std::strerror(error_number));
}

File::File(std::string path, int fd) : path_(std::move(path)), fd_(fd) {}
File::File(File&& other) noexcept
    : path_(std::move(other.path_)), fd_(std::exchange(other.fd_, -1)) {}
File::~File() {
  if (fd_ >= 0) ::close(fd_);
}

File File::open_for_reading(const std::string& path) {
  File file(path, open_or_throw(path, O_RDONLY | O_NONBLOCK, "open"));
  struct stat status {};
  // Opening with O_NONBLOCK keeps a pipe under this name from blocking us; reading it could still
  // block or never end, so only regular files pass.
  if (::fstat(file.fd_, &status) != 0) throw_errno("cannot stat " + path, errno);
  if (!S_ISREG(status.st_mode)) throw Error(YOKE_DATA_LOSS, path + " is not a regular file");
  return file;
}

File File::open_for_writing(const std::string& path) {
  return File(path, open_or_throw(path, O_WRONLY | O_NOFOLLOW, "open for writing"));
}

File File::create(const std::string& path) {
  return File(path, open_or_throw(path, O_WRONLY | O_CREAT | O_EXCL, "create"));
}

uint64_t File::size() const {
  struct stat status {};
  if (::fstat(fd_, &status) != 0) throw_errno("cannot stat " + path_, errno);
  return static_cast<uint64_t>(status.st_size);
}

void File::read_at(void* dst, size_t size, uint64_t offset) const {
  auto* p = static_cast<char*>(dst);
  while (size > 0) {
    const ssize_t n = ::pread(fd_, p, size, static_cast<off_t>(offset));
    if (n < 0 && errno == EINTR) continue;
    if (n < 0) throw_errno("cannot read " + path_, errno);
    if (n == 0) {
      throw Error(
          YOKE_DATA_LOSS,
          concat(path_, " ends at byte ", offset, ", but ", size, " more bytes are needed"));
    }
    p += n;
    offset += static_cast<uint64_t>(n);
    size -= static_cast<size_t>(n);
  }
}

void File::write_at(const void* src, size_t size, uint64_t offset) {
  const auto* p = static_cast<const char*>(src);
  while (size > 0) {
    const ssize_t n = ::pwrite(fd_, p, size, static_cast<off_t>(offset));
    if (n < 0 && errno == EINTR) continue;
    if (n < 0) throw_errno("cannot write " + path_, errno);
    p += n;
    offset += static_cast<uint64_t>(n);
    size -= static_cast<size_t>(n);
  }
}

void File::reserve(uint64_t size) {
  if (::fallocate(fd_, 0, 0, static_cast<off_t>(size)) == 0) return;
  if (errno != EOPNOTSUPP && errno != ENOSYS) {
    throw_errno(concat("cannot reserve ", size, " bytes for ", path_), errno);
  }
  if (::ftruncate(fd_, static_cast<off_t>(size)) != 0) throw_errno("cannot extend " + path_, errno);
}

// A failed sync must not be retried on the same file: Linux reports the error once, marks the dirty
// pages as clean, and a second fsync would return success without the data.
void File::sync_data() {
  if (::fdatasync(fd_) != 0) throw_errno("cannot sync " + path_, errno);
}

void File::sync() {
  if (::fsync(fd_) != 0) throw_errno("cannot sync " + path_, errno);
}

void File::close() {
  // On Linux the descriptor is gone after EINTR, too; closing again could hit another file.
  if (::close(std::exchange(fd_, -1)) != 0 && errno != EINTR) {
    throw_errno("cannot close " + path_, errno);
  }
}

FolderLock::FolderLock(const std::string& folder) {
  const std::string path = folder + "/.lock";
  fd_ = open_or_throw(path, O_RDWR | O_CREAT, "open");
  if (::flock(fd_, LOCK_EX | LOCK_NB) == 0) return;
  const int error_number = errno;
  ::close(std::exchange(fd_, -1));
  if (error_number != EWOULDBLOCK) throw_errno("cannot lock " + path, error_number);
}

FolderLock::~FolderLock() {
  if (fd_ >= 0) ::close(fd_);
}

void make_folders(const std::string& path) {
  std::vector<std::string> missing;  // innermost first
  for (std::string at = path;; at = parent_of(at)) {
    struct stat status {};
    if (::stat(at.c_str(), &status) == 0) {
      if (!S_ISDIR(status.st_mode)) {
        throw Error(YOKE_FAILED_PRECONDITION,
                    "cannot create the folder " + path + ": " + at + " is not a folder");
      }
      break;
    }
    if (errno != ENOENT) throw_errno("cannot create the folder " + path, errno);
    missing.push_back(at);
    if (at == "." || at == "/") break;
  }
  for (auto at = missing.rbegin(); at != missing.rend(); ++at) {
    if (::mkdir(at->c_str(), 0777) != 0 && errno != EEXIST) {
      throw_errno("cannot create the folder " + *at, errno);
    }
    sync_folder(parent_of(*at));
  }
}

void sync_folder(const std::string& path) {
  const int fd = open_or_throw(path, O_RDONLY | O_DIRECTORY, "open the folder");
  const int error_number = ::fsync(fd) == 0 ? 0 : errno;
  ::close(fd);
  if (error_number != 0) throw_errno("cannot sync the folder " + path, error_number);
}

void remove_tree(const std::string& path) {
  std::error_code error;
  fs::remove_all(path, error);
  if (error) throw_errno("cannot remove " + path, error.value());
}

uint64_t free_bytes(const std::string& folder) {
  struct statvfs status {};
  if (::statvfs(folder.c_str(), &status) != 0)
    throw_errno("cannot stat the file system of " + folder, errno);
  // Some file systems, such as those in user space, report no size at all.
  if (status.f_blocks == 0) return std::numeric_limits<uint64_t>::max();
  return static_cast<uint64_t>(status.f_bavail) * status.f_frsize;
}

std::string read_text(const std::string& path, uint64_t max_bytes) {
  const File file = File::open_for_reading(path);
  const uint64_t size = file.size();
  if (size > max_bytes) {
    throw Error(YOKE_DATA_LOSS,
                concat(path, " has ", size, " bytes, more than the ", max_bytes, " allowed"));
  }
  std::string text(size, '\0');
  file.read_at(text.data(), size, 0);
  return text;
}

void create_text(const std::string& path, std::string_view text) {
  File file = File::create(path);
  file.write_at(text.data(), text.size(), 0);
  file.sync();
  file.close();
}

void replace_text(const std::string& path, std::string_view text) {
  const std::string temporary = concat(path, ".tmp-", ::getpid());
  if (::unlink(temporary.c_str()) != 0 && errno != ENOENT) {
    throw_errno("cannot remove " + temporary, errno);
  }
  create_text(temporary, text);
  if (::rename(temporary.c_str(), path.c_str()) != 0) {
    const int error_number = errno;
    ::unlink(temporary.c_str());
    throw_errno("cannot write " + path, error_number);
  }
  sync_folder(parent_of(path));
}

}  // namespace yoke
