// An owned file descriptor, a pipe, and a function that reads what is available.
#pragma once

#include <fcntl.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <string>
#include <utility>

#include "yoke/error.hpp"

namespace yoke {

// Owns a file descriptor and closes it on destruction; -1 = none. Movable.
class FileDescriptor {
 public:
  FileDescriptor() = default;
  explicit FileDescriptor(int fd) : fd_(fd) {}
  ~FileDescriptor() { reset(); }
  FileDescriptor(FileDescriptor&& other) noexcept : fd_(std::exchange(other.fd_, -1)) {}
  FileDescriptor& operator=(FileDescriptor&& other) noexcept {
    if (this != &other) reset(std::exchange(other.fd_, -1));
    return *this;
  }
  void reset(int fd = -1) {
    if (fd_ >= 0) ::close(fd_);
    fd_ = fd;
  }
  int get() const { return fd_; }
  int release() { return std::exchange(fd_, -1); }  // the caller must close it
  bool open() const { return fd_ >= 0; }

 private:
  int fd_ = -1;
};

struct Pipe {
  FileDescriptor read_end, write_end;
};

// Creates a pipe. A program that we start does not inherit its ends unless one is duplicated for
// it. Throws Error(RESOURCE_EXHAUSTED) if the process or the system has too many open files.
inline Pipe make_pipe() {
  int fds[2];
  if (::pipe2(fds, O_CLOEXEC) != 0) {
    throw Error(YOKE_RESOURCE_EXHAUSTED,
                std::string("cannot make a pipe: ") + std::strerror(errno));
  }
  return {FileDescriptor(fds[0]), FileDescriptor(fds[1])};
}

// Appends what one read() returns, at most 16 KiB. Waits only if `fd` is a blocking descriptor
// without data. Returns false at the end of the stream and after an error.
inline bool read_available(int fd, std::string& into) {
  char buffer[16384];
  const ssize_t n = ::read(fd, buffer, sizeof buffer);
  if (n > 0) into.append(buffer, static_cast<size_t>(n));
  return n > 0 || (n < 0 && (errno == EAGAIN || errno == EINTR));
}

}  // namespace yoke
