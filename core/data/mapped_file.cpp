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
#include <filesystem>

#include "core/data/data_files.hpp"
#include "yoke/error.hpp"
#include "yoke/text.hpp"

namespace yoke {
namespace {

// The text of the run files in configs/.
constexpr char kDemoText[] = "novels.txt";

[[noreturn]] void fail(const std::string& name, const std::string& path, int error) {
  if (error == ENOENT || error == ENOTDIR) {
    const bool demo = std::filesystem::path(path).filename() == kDemoText;
    const bool list = path.find(',') != std::string::npos;
    throw Error(YOKE_NOT_FOUND,
                name + " does not exist" + (list ? "; write a list as [\"a\", \"b\"]" : "") +
                    (demo ? "; set data.path to a text of your own or, in Yoke's repository, run "
                            "scripts/fetch_text data/novels.txt; without a network, run "
                            "scripts/generate_text data/novels.txt"
                          : nearest_names(path)));
  }
  throw Error(YOKE_INVALID_ARGUMENT, concat(name, " cannot be read: ", std::strerror(error)));
}

}  // namespace

MappedFile::MappedFile(const std::string& path, const std::string& key)
    : name_(path_is(key, path)) {
  // With O_NONBLOCK, a pipe of this name does not wait for a writer.
  const int fd = ::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK);
  if (fd < 0) fail(name_, path, errno);
  struct stat info {};
  if (::fstat(fd, &info) != 0 || !S_ISREG(info.st_mode)) {
    ::close(fd);
    throw Error(YOKE_INVALID_ARGUMENT,
                name_ + " is not a regular file; give a text file, or a .bin file of token ids");
  }
  size_ = static_cast<size_t>(info.st_size);
  // mmap refuses a length of 0; an empty file stays unmapped.
  if (size_ > 0) data_ = ::mmap(nullptr, size_, PROT_READ, MAP_PRIVATE, fd, 0);
  const int error = errno;
  ::close(fd);
  if (data_ == MAP_FAILED) fail(name_, path, error);
}

MappedFile::~MappedFile() {
  if (data_ != nullptr) ::munmap(data_, size_);
}

}  // namespace yoke
