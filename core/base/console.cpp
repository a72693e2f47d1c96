// All output passes through kept_, one buffer per stream. write_some() writes as much of it as the
// reader accepts without blocking. Setting O_NONBLOCK on stdout was rejected: the flag belongs to
// the open file, which the user's shell shares, and would remain set after this process has ended.
#include "core/base/console.hpp"

#include <poll.h>
#include <sys/ioctl.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <climits>

namespace yoke {
namespace {

constexpr char kErase[] = "\r\033[K";  // back to the first column, erase to the end of the line

constexpr size_t kFull = 1 << 20;       // kept bytes above which full() is true
constexpr size_t kMostKept = 64 << 20;  // kept bytes above which lines are dropped

// A pipe that poll() reports as writable takes this many bytes without blocking.
constexpr size_t kAtOnce = PIPE_BUF;

size_t index_of(int fd) {
  return fd == STDERR_FILENO ? 1 : 0;
}

bool takes_more(int fd) {
  pollfd writable{fd, POLLOUT, 0};
  return ::poll(&writable, 1, 0) > 0;
}

// Cuts a progress line to the width of the terminal: a line that wraps could not be overwritten.
std::string cut_to_width(const std::string& text) {
  winsize size{};
  const bool known = ::ioctl(STDOUT_FILENO, TIOCGWINSZ, &size) == 0 && size.ws_col > 1;
  return text.substr(0, known ? size.ws_col - 1 : 79);
}

}  // namespace

Console::~Console() {
  if (!progress_.empty()) put(STDOUT_FILENO, kErase);
}

void Console::line(int fd, const std::string& text) {
  if (kept_[index_of(fd)].size() > kMostKept) return;
  if (!progress_.empty()) put(STDOUT_FILENO, kErase);
  put(fd, text + "\n");
  if (!progress_.empty()) put(STDOUT_FILENO, progress_);
}

void Console::progress(const std::string& text) {
  if (::isatty(STDOUT_FILENO) != 1 || waiting_fd(STDOUT_FILENO) >= 0) return;
  progress_ = cut_to_width(text);
  put(STDOUT_FILENO, kErase + progress_);
}

int Console::waiting_fd(int fd) const {
  return kept_[index_of(fd)].empty() ? -1 : fd;
}

bool Console::full() const {
  return kept_[0].size() > kFull || kept_[1].size() > kFull;
}

void Console::put(int fd, const std::string& text) {
  kept_[index_of(fd)] += text;
  write_some();
}

void Console::write_some() {
  for (const int fd : {STDOUT_FILENO, STDERR_FILENO}) {
    std::string& text = kept_[index_of(fd)];
    while (!text.empty() && takes_more(fd)) {
      const ssize_t n = ::write(fd, text.data(), std::min(text.size(), kAtOnce));
      if (n > 0) text.erase(0, static_cast<size_t>(n));
      if (n < 0 && errno != EINTR && errno != EAGAIN) text.clear();  // the reader is gone
    }
  }
}

}  // namespace yoke
