// The mapping is private and read-only. Reading through it needs no buffers and no file position,
// so any number of threads may read at once, and the page cache keeps one copy for all ranks of a
// machine. The descriptor is closed at once: a mapping outlives it.
#include "core/data/mapped_file.hpp"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>

#include "yoke/error.hpp"
#include "yoke/text.hpp"

namespace yoke {
namespace {

[[noreturn]] void fail(const std::string& path, int error) {
  if (error == ENOENT || error == ENOTDIR) {
    throw Error(YOKE_NOT_FOUND,
                data_path_is(path) +
                    " does not exist; to get the demo text, run scripts/demo or "
                    "scripts/fetch_text data/novels.txt; without a network, run "
                    "scripts/generate_text FILE");
  }
  throw Error(YOKE_INVALID_ARGUMENT,
              concat(data_path_is(path), " cannot be read: ", std::strerror(error)));
}

}  // namespace

std::string data_path_is(const std::string& path) {
  return "data.path = \"" + path + "\"";
}

MappedFile::MappedFile(const std::string& path) {
  const int fd = ::open(path.c_str(), O_RDONLY | O_CLOEXEC);
  if (fd < 0) fail(path, errno);
  struct stat info {};
  if (::fstat(fd, &info) != 0 || !S_ISREG(info.st_mode)) {
    ::close(fd);
    throw Error(YOKE_INVALID_ARGUMENT,
                data_path_is(path) +
                    " is not a regular file; give a text file, or a .bin file of token ids");
  }
  size_ = static_cast<size_t>(info.st_size);
  // mmap refuses a length of 0; an empty file stays unmapped.
  if (size_ > 0) data_ = ::mmap(nullptr, size_, PROT_READ, MAP_PRIVATE, fd, 0);
  const int error = errno;
  ::close(fd);
  if (data_ == MAP_FAILED) fail(path, error);
}

MappedFile::~MappedFile() {
  if (data_ != nullptr) ::munmap(data_, size_);
}

}  // namespace yoke
