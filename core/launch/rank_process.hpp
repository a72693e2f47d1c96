// One rank as a process that cannot outlive the launcher, and whose output is read line by line.
#pragma once

#include <sys/types.h>

#include <deque>
#include <functional>
#include <string>

#include "core/base/file_descriptor.hpp"
#include "core/base/subprocess.hpp"
#include "core/launch/launcher.hpp"

namespace yoke {

// Cuts a stream of output into lines and passes each to a sink.
class LineStream {
 public:
  using Sink = std::function<void(const std::string& line)>;  // receives lines without newline

  LineStream(FileDescriptor fd, Sink sink);
  int fd() const { return fd_.get(); }
  bool open() const { return fd_.open(); }
  // Reads what is available without waiting. Closes the stream at its end.
  void read_some();
  // Reads what is left, passes an unfinished line as well, and closes the stream.
  void finish();

 private:
  void pass_lines(bool all);  // all: include a last line without newline

  FileDescriptor fd_;
  Sink sink_;
  std::string text_;
};

// Starts a rank and owns its process group. Used by one thread.
class RankProcess {
 public:
  using Show = std::function<void(int rank, bool is_stderr, const std::string& line)>;

  // Starts the process; its lines are passed to `show` as they are read. Throws Error(INTERNAL) if
  // it cannot be started.
  RankProcess(int rank, const RankCommand& command, Show show);
  ~RankProcess();  // kills the process group if it is still running
  RankProcess(RankProcess&&) = delete;

  int rank() const { return rank_; }
  pid_t pid() const { return pid_; }
  bool running() const { return process_.open(); }
  const Ending& ending() const { return ending_; }  // valid after reap()
  // The last 20 lines of stdout and stderr, in the order read.
  const std::deque<std::string>& last_lines() const { return last_lines_; }

  int process_fd() const { return process_.get(); }  // becomes readable when the process has ended
  LineStream& out() { return out_; }
  LineStream& err() { return err_; }

  void send(int signal);  // sends the signal to the whole process group
  // Stores the ending, reads the rest of the output and kills processes that the rank has left
  // behind. Call it when process_fd() has become readable.
  void reap();

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
