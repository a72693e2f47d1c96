// O_TMPFILE makes a file that never has a name. File systems without it (NFS, some overlays) get a
// name for a moment, which is removed before anything is written.
#include "plugins/deepspeed_stub/offload/state_file.hpp"

#include <fcntl.h>
#include <linux/magic.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <sys/vfs.h>
#include <unistd.h>

#include <cerrno>
#include <cstdlib>
#include <cstring>

#include "yoke/error.hpp"
#include "yoke/text.hpp"

namespace yoke::deepspeed_stub {
namespace {

// Returns the descriptor of a new file, or -1 with the reason in errno.
int open_unnamed(const std::string& folder) {
  const int file = open(folder.c_str(), O_TMPFILE | O_EXCL | O_RDWR | O_CLOEXEC, 0600);
  if (file >= 0 || (errno != EOPNOTSUPP && errno != EISDIR && errno != EINVAL)) return file;
  std::string name = folder + "/.yoke-offload-XXXXXX";
  const int named = mkostemp(name.data(), O_CLOEXEC);
  if (named >= 0) unlink(name.c_str());
  return named;
}

// Returns the number of bytes that this user may still write to the file system, -1 = unknown.
int64_t free_bytes(int file) {
  struct statvfs disk {};
  if (fstatvfs(file, &disk) != 0) return -1;
  return static_cast<int64_t>(disk.f_bavail) * static_cast<int64_t>(disk.f_frsize);
}

[[noreturn]] void refuse(const std::string& key, const std::string& folder, const char* why) {
  throw Error(YOKE_FAILED_PRECONDITION,
              concat(key, " = \"", folder, "\" ", why, "; name a writable folder on a local disk"));
}

}  // namespace

void require_disk_folder(const std::string& folder, const std::string& key) {
  struct stat entry {};
  if (stat(folder.c_str(), &entry) != 0) {
    if (errno == ENOENT) refuse(key, folder, "does not exist");
    refuse(key, folder, std::strerror(errno));
  }
  if (!S_ISDIR(entry.st_mode)) refuse(key, folder, "is not a folder");
  struct statfs system {};
  if (statfs(folder.c_str(), &system) == 0 &&
      (system.f_type == TMPFS_MAGIC || system.f_type == RAMFS_MAGIC))
    refuse(key, folder, "is in memory (tmpfs), so offload to it would save no memory");
  const int file = open_unnamed(folder);
  if (file < 0)
    refuse(key, folder, concat("cannot be written to (", std::strerror(errno), ")").c_str());
  close(file);
}

StateFile::StateFile(const std::string& folder, int64_t bytes)
    : folder_(folder), descriptor_(open_unnamed(folder)) {
  if (descriptor_ < 0)
    throw Error(YOKE_FAILED_PRECONDITION,
                concat("offload cannot create a file in ", folder, ": ", std::strerror(errno)));
  try {
    reserve(bytes);
  } catch (...) {
    close(descriptor_);
    throw;
  }
}

StateFile::~StateFile() {
  close(descriptor_);
}

// Not every file system can reserve space. There the free space is compared, and a disk that fills
// up later is an error of a write.
void StateFile::reserve(int64_t bytes) const {
  if (bytes == 0) return;
  const int64_t free = free_bytes(descriptor_);
  const auto too_small = [&] {
    throw Error(YOKE_RESOURCE_EXHAUSTED,
                concat("offload needs ",
                       bytes,
                       " bytes in ",
                       folder_,
                       " for a file of one rank, but ",
                       free,
                       " are free; free space there, set nvme_path to another disk, or use more "
                       "ranks"));
  };
  if (free >= 0 && free < bytes) too_small();
  int code = fallocate(descriptor_, 0, 0, bytes);
  while (code != 0 && errno == EINTR) code = fallocate(descriptor_, 0, 0, bytes);
  if (code == 0) return;
  if (errno == ENOSPC || errno == EDQUOT) too_small();
  if (errno != EOPNOTSUPP || ftruncate(descriptor_, bytes) != 0)
    throw Error(
        YOKE_FAILED_PRECONDITION,
        concat(
            "offload cannot reserve ", bytes, " bytes in ", folder_, ": ", std::strerror(errno)));
}

}  // namespace yoke::deepspeed_stub
