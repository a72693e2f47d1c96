// What the launcher writes: whole lines and, if stdout is a terminal, below them one line that is
// overwritten again and again.
#pragma once

#include <array>
#include <string>

namespace yoke {

// A line that begins with this tells the progress of a run: shown in place, or not at all.
constexpr char kProgressMark = '\r';

// Not thread-safe; one per process. Never waits for a reader: what it does not take is kept, up to
// a bound. Failing to write never throws: a run goes on unread.
class Console {
 public:
  ~Console();  // takes the progress line away
  void line(int fd, const std::string& text);
  void progress(const std::string& text);

  // stdout or stderr if it waits for its reader, else -1; for poll (POLLOUT).
  int waiting_fd(int fd) const;
  void write_some();
  // Nobody reads. Stop the writers, if they can wait; of those that go on, lines are lost in the
  // end.
  bool full() const;

 private:
  void put(int fd, const std::string& text);

  std::string progress_;             // what stands there now, without newline
  std::array<std::string, 2> kept_;  // of stdout and stderr
};

}  // namespace yoke
