#include "core/launch/console.hpp"

#include <sys/ioctl.h>
#include <unistd.h>

#include <cerrno>

namespace yoke {
namespace {

constexpr char kErase[] = "\r\033[K";

void write_all(int fd, const std::string& text) {
  for (size_t done = 0; done < text.size();) {
    const ssize_t n = ::write(fd, text.data() + done, text.size() - done);
    if (n > 0) done += static_cast<size_t>(n);
    if (n < 0 && errno != EINTR) return;  // nobody reads any more; the run goes on
  }
}

// A line that wraps could not be overwritten.
std::string cut_to_width(const std::string& text) {
  winsize size{};
  const bool known = ::ioctl(STDOUT_FILENO, TIOCGWINSZ, &size) == 0 && size.ws_col > 1;
  return text.substr(0, known ? size.ws_col - 1 : 79);
}

}  // namespace

Console::~Console() {
  if (!progress_.empty()) write_all(STDOUT_FILENO, kErase);
}

void Console::line(int fd, const std::string& text) {
  if (!progress_.empty()) write_all(STDOUT_FILENO, kErase);
  write_all(fd, text + "\n");
  if (!progress_.empty()) write_all(STDOUT_FILENO, progress_);
}

void Console::progress(const std::string& text) {
  if (::isatty(STDOUT_FILENO) != 1) return;
  progress_ = cut_to_width(text);
  write_all(STDOUT_FILENO, kErase + progress_);
}

}  // namespace yoke
