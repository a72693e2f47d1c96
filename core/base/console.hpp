// The launcher's output: complete lines on stdout and stderr and, if stdout is a terminal, one
// progress line below them that is overwritten in place.
#pragma once

#include <array>
#include <string>

namespace yoke {

// First character of a line that reports the progress of a run. On a terminal it replaces the
// previous progress line; elsewhere it is dropped.
constexpr char kProgressMark = '\r';

// Never waits for a slow reader: text that cannot be written now is kept, up to a bound, and a
// later call writes it. A write error never throws, because a run continues even if nobody reads
// its output. One object per process; not thread-safe.
class Console {
 public:
  ~Console();  // erases the progress line

  // Writes the text and a newline to `fd`, which is STDOUT_FILENO or STDERR_FILENO. The progress
  // line is drawn again below it.
  void line(int fd, const std::string& text);

  // Replaces the progress line, cut to the width of the terminal. Does nothing if stdout is not a
  // terminal, or if text for stdout is still waiting.
  void progress(const std::string& text);

  // Returns `fd` if some of its text is not written yet, else -1. The launcher polls the result for
  // POLLOUT and then calls write_some().
  int waiting_fd(int fd) const;
  // Writes as much of the kept text as the readers accept without blocking.
  void write_some();
  // Returns true if more than 1 MiB is kept for one stream. The caller should then stop reading
  // from the ranks, so that they block too. Beyond 64 MiB, further lines are dropped.
  bool full() const;

 private:
  void put(int fd, const std::string& text);

  std::string progress_;             // the progress line on the screen, without newline
  std::array<std::string, 2> kept_;  // text not yet written to stdout and to stderr
};

}  // namespace yoke
