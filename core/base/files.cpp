// Every system call is retried after EINTR where the call allows it, and its error becomes an Error
// with the path. std::filesystem is used only where nothing must be durable: it offers no fsync, no
// positional transfers and no exclusive creation.
#include "core/base/files.hpp"

#include <fcntl.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <sys/vfs.h>
#include <unistd.h>

#include <cerrno>
#include <chrono>
#include <cstring>
#include <filesystem>
#include <limits>
#include <system_error>
#include <thread>
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

// Repeats a system call that a signal interrupted before it did anything. On network file systems
// and file systems in user space, Linux may interrupt any call in this way, even with SA_RESTART.
template <class Call>
auto uninterrupted(Call&& call) {
  decltype(call()) result;
  do {
    result = call();
  } while (result < 0 && errno == EINTR);
  return result;
}

int open_or_throw(const std::string& path, int flags, const char* what) {
  const int fd = uninterrupted([&] { return ::open(path.c_str(), flags | O_CLOEXEC, 0666); });
  if (fd < 0) throw_errno(std::string("cannot ") + what + " " + path, errno);
  return fd;
}

// Returns false if the file system cannot sync folders.
bool sync_entries(const std::string& folder) {
  const int fd = open_or_throw(folder, O_RDONLY | O_DIRECTORY, "open the folder");
  const int error_number = uninterrupted([&] { return ::fsync(fd); }) == 0 ? 0 : errno;
  ::close(fd);
  if (error_number == EINVAL || error_number == ENOTSUP || error_number == ENOSYS) return false;
  if (error_number != 0) throw_errno("cannot sync the folder " + folder, error_number);
  return true;
}

bool in_memory(const std::string& folder) {
  constexpr long kTmpfs = 0x01021994, kRamfs = 0x858458F6;  // as in linux/magic.h
  struct statfs status {};
  if (::statfs(folder.c_str(), &status) != 0) return false;
  return status.f_type == kTmpfs || status.f_type == kRamfs;
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
  // block or never end, so only regular files are accepted.
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
    const ssize_t n =
        uninterrupted([&] { return ::pread(fd_, p, size, static_cast<off_t>(offset)); });
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
    const ssize_t n =
        uninterrupted([&] { return ::pwrite(fd_, p, size, static_cast<off_t>(offset)); });
    if (n < 0) throw_errno("cannot write " + path_, errno);
    p += n;
    offset += static_cast<uint64_t>(n);
    size -= static_cast<size_t>(n);
  }
}

void File::reserve(uint64_t size) {
  if (size == 0) return;  // fallocate() refuses this size
  const auto bytes = static_cast<off_t>(size);
  if (uninterrupted([&] { return ::fallocate(fd_, 0, 0, bytes); }) == 0) return;
  if (errno != EOPNOTSUPP && errno != ENOSYS) {
    throw_errno(concat("cannot reserve ", size, " bytes for ", path_), errno);
  }
  if (uninterrupted([&] { return ::ftruncate(fd_, bytes); }) != 0)
    throw_errno("cannot extend " + path_, errno);
}

// A failed sync must not be retried on the same file: Linux reports the error once, marks the dirty
// pages as clean, and a second fsync would return success without the data. An interrupted sync has
// reported nothing yet and may be repeated.
void File::sync_data() {
  if (uninterrupted([&] { return ::fdatasync(fd_); }) != 0)
    throw_errno("cannot sync " + path_, errno);
}

void File::sync() {
  if (uninterrupted([&] { return ::fsync(fd_); }) != 0) throw_errno("cannot sync " + path_, errno);
}

void File::close() {
  // Linux closes the descriptor even if it reports EINTR; a second call could close another file.
  if (::close(std::exchange(fd_, -1)) != 0 && errno != EINTR) {
    throw_errno("cannot close " + path_, errno);
  }
}

FolderLock::FolderLock(const std::string& folder) {
  const std::string path = folder + "/.lock";
  fd_ = open_or_throw(path, O_RDWR | O_CREAT, "open");
  if (uninterrupted([&] { return ::flock(fd_, LOCK_EX | LOCK_NB); }) == 0) return;
  const int error_number = errno;
  // Lustre without the mount option flock, or NFS without a lock service.
  exclusive_ = error_number != ENOSYS && error_number != EOPNOTSUPP && error_number != ENOLCK;
  if (!exclusive_) return;
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
    if (uninterrupted([&] { return ::mkdir(at->c_str(), 0777); }) != 0 && errno != EEXIST)
      throw_errno("cannot create the folder " + *at, errno);
    sync_folder(parent_of(*at));
  }
}

void make_folder(const std::string& path) {
  if (uninterrupted([&] { return ::mkdir(path.c_str(), 0777); }) != 0)
    throw_errno("cannot create the folder " + path, errno);
}

void sync_folder(const std::string& path) {
  sync_entries(path);
}

// Every folder of the path is synced, not only those that this process created: spdlog, another
// rank or the user may have created one a moment ago. If a folder's entry is lost in a crash,
// everything below it is lost as well. Syncing a folder without changes costs microseconds.
std::string make_path_durable(const std::string& folder) {
  const fs::path whole = fs::absolute(folder).lexically_normal() / "";
  std::string warning = in_memory(folder) ? folder + " lies in memory (tmpfs)" : "";
  for (fs::path at = whole.parent_path();; at = at.parent_path()) {
    try {
      if (!sync_entries(at.string()) && warning.empty())
        warning = "the file system of " + at.string() + " cannot sync folders";
    } catch (const Error& e) {
      if (e.code() != YOKE_FAILED_PRECONDITION) throw;
      // A user without write permission cannot have just created an entry in this folder.
      const bool may_change = ::access(at.c_str(), W_OK) == 0;
      if (may_change && warning.empty()) warning = e.what();
    }
    if (at == at.parent_path()) break;
  }
  return warning.empty() ? "" : warning + "; a power failure may lose this folder";
}

void rename_path(const std::string& from, const std::string& to) {
  if (uninterrupted([&] { return ::rename(from.c_str(), to.c_str()); }) != 0)
    throw_errno("cannot rename " + from + " to " + to, errno);
}

void exchange_paths(const std::string& a, const std::string& b) {
  const auto exchange = [&] {
    return ::renameat2(AT_FDCWD, a.c_str(), AT_FDCWD, b.c_str(), RENAME_EXCHANGE);
  };
  if (uninterrupted(exchange) == 0) return;
  if (errno != EINVAL && errno != ENOSYS) throw_errno("cannot exchange " + a + " and " + b, errno);
  throw Error(YOKE_FAILED_PRECONDITION,
              b + " exists, and this file system cannot replace it atomically; move it away");
}

void remove_file(const std::string& path) {
  if (uninterrupted([&] { return ::unlink(path.c_str()); }) != 0 && errno != ENOENT)
    throw_errno("cannot remove " + path, errno);
}

void remove_tree(const std::string& path) {
  std::error_code error;
  do {
    error.clear();
    fs::remove_all(path, error);
  } while (error.value() == EINTR);
  if (error) throw_errno("cannot remove " + path, error.value());
}

uint64_t free_bytes(const std::string& folder) {
  struct statvfs status {};
  if (::statvfs(folder.c_str(), &status) != 0)
    throw_errno("cannot stat the file system of " + folder, errno);
  // Some file systems, such as those in user space, report a size of 0.
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
  remove_file(temporary);
  create_text(temporary, text);
  try {
    rename_path(temporary, path);
  } catch (const Error&) {
    ::unlink(temporary.c_str());
    throw;
  }
  sync_folder(parent_of(path));
}

bool exists_soon(const std::string& path) {
  constexpr std::chrono::seconds kCached{3};
  const auto until = std::chrono::steady_clock::now() + kCached;
  struct stat info {};
  while (::stat(path.c_str(), &info) != 0) {
    if (std::chrono::steady_clock::now() > until) return false;
    std::this_thread::sleep_for(std::chrono::milliseconds(100));
  }
  return true;
}

}  // namespace yoke
