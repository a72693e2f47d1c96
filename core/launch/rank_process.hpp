// One rank as a process: started so that it cannot outlive us, its output cut into lines.
#pragma once

#include <sys/types.h>

#include <deque>
#include <functional>
#include <string>

#include "core/base/file_descriptor.hpp"
#include "core/base/subprocess.hpp"
#include "core/launch/launcher.hpp"

namespace yoke {

// A stream of output, handed on line by line.
class LineStream {
 public:
  using Sink = std::function<void(const std::string& line)>;  // line: without newline

  LineStream(FileDescriptor fd, Sink sink);
  int fd() const { return fd_.get(); }
  bool open() const { return fd_.open(); }
  void read_some();  // takes what is there; never waits; closes at the end of the stream
  void finish();     // takes what is left, hands on an unfinished line, closes

 private:
  void hand_on(bool all);

  FileDescriptor fd_;
  Sink sink_;
  std::string text_;
};

class RankProcess {
 public:
  using Show = std::function<void(int rank, bool is_stderr, const std::string& line)>;

  RankProcess(int rank, const RankCommand& command, Show show);  // throws Error(INTERNAL)
  ~RankProcess();                                                // kills what is left of it
  RankProcess(RankProcess&&) = delete;

  int rank() const { return rank_; }
  pid_t pid() const { return pid_; }
  bool running() const { return process_.open(); }
  const Ending& ending() const { return ending_; }  // after it has ended
  const std::deque<std::string>& last_lines() const { return last_lines_; }

  int process_fd() const { return process_.get(); }  // readable when the process has ended
  LineStream& out() { return out_; }
  LineStream& err() { return err_; }

  void send(int signal);  // to its whole process group
  void reap();  // process_fd() is readable: takes the ending, the rest of the output, and kills
                // what the rank left behind

 private:
  void keep(bool is_stderr, const std::string& line);

  int rank_;
  Show show_;
  pid_t pid_ = -1;
  FileDescriptor process_;
  Ending ending_;
  std::deque<std::string> last_lines_;
  LineStream out_, err_;
};

}  // namespace yoke
