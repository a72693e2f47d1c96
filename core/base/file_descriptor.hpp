// An owned file descriptor, and a pipe of two.
#pragma once

#include <fcntl.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <string>
#include <utility>

#include "yoke/error.hpp"

namespace yoke {

// Closes on destruction; -1 = none.
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
  int release() { return std::exchange(fd_, -1); }
  bool open() const { return fd_ >= 0; }

 private:
  int fd_ = -1;
};

struct Pipe {
  FileDescriptor read_end, write_end;
};

// Both ends are closed in programs that we start, unless they are handed over.
inline Pipe make_pipe() {
  int fds[2];
  if (::pipe2(fds, O_CLOEXEC) != 0) {
    throw Error(YOKE_RESOURCE_EXHAUSTED,
                std::string("cannot make a pipe: ") + std::strerror(errno));
  }
  return {FileDescriptor(fds[0]), FileDescriptor(fds[1])};
}

// Appends what is there now, without waiting. False at the end of the stream.
inline bool read_available(int fd, std::string& into) {
  char buffer[16384];
  const ssize_t n = ::read(fd, buffer, sizeof buffer);
  if (n > 0) into.append(buffer, static_cast<size_t>(n));
  return n > 0 || (n < 0 && (errno == EAGAIN || errno == EINTR));
}

}  // namespace yoke
