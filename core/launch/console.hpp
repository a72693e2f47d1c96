// What the launcher writes: whole lines and, if stdout is a terminal, below them one line that is
// overwritten again and again.
#pragma once

#include <string>

namespace yoke {

// A line that begins with this tells the progress of a run: shown in place, or not at all.
constexpr char kProgressMark = '\r';

// Not thread-safe; one per process. Failing to write never throws: a run goes on unread.
class Console {
 public:
  ~Console();  // takes the progress line away
  void line(int fd, const std::string& text);
  void progress(const std::string& text);

 private:
  std::string progress_;  // what stands there now, without newline
};

}  // namespace yoke
