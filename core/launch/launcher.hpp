// Runs the ranks of one machine as processes and supervises them: passes on output and signals,
// reports failures, and leaves no process behind. Uses one thread and no LibTorch.
#pragma once

#include <functional>
#include <string>
#include <utility>
#include <vector>

namespace yoke {

// One process to start.
struct RankCommand {
  std::vector<std::string> argv;  // argv[0] is an absolute path
  std::vector<std::pair<std::string, std::string>>
      variables;  // added to the launcher's environment
};

// An order of another thread to stop the ranks: they get SIGUSR1, save after their step and end.
struct StopOrder {
  int fd = -1;  // becomes readable when the ranks are to stop; -1 = never
  std::function<std::string()> reason = {};  // printed then
};

// What the caller knows about the run, and what it learns.
struct LaunchReport {
  int first_rank = 0;  // rank of the first command, if other machines run ranks before it
  int world_size = 0;  // ranks of the whole run; 0 = those started here
  // Results, if a rank failed: the first line of what was printed about it, and whether a signal
  // killed it. The other ranks know only that it is gone.
  std::string cause;
  bool killed = false;
  bool signalled = false;  // a signal was forwarded
  StopOrder stop = {};     // given by the caller
};

// Starts all commands and returns when all of them have ended.
//
// Output
//   Output is read line by line. stdout of rank 0 is passed on unchanged. If there is more than one
//   rank, all other lines get the prefix "[rank R] ". stdin of the ranks is /dev/null.
//   Lines that start with kProgressMark (console.hpp) are shown in place on a terminal, and dropped
//   elsewhere. If nobody reads our output, the ranks block; signals still work.
// Signals
//   The first SIGINT, SIGTERM, SIGHUP, SIGUSR1 or SIGUSR2 is forwarded, as SIGINT or SIGTERM; the
//   ranks finish their step and save. A second signal kills them, unless it is the same one within
//   two seconds: batch systems and `timeout` send a signal to several processes of a job, and each
//   passes it on.
// Failures
//   The first rank that fails is reported on stderr as the cause, with its exit code or signal and
//   its last lines. Among failures within 200 ms, a rank killed by a signal is the most likely
//   cause, and a rank that only lost its peer (exit code 5) is the least likely. The other ranks
//   get SIGTERM, and SIGKILL 1.5 s later. What they still print is not shown.
// Orphans
//   Each rank leads a process group, which is killed when the rank has ended. If the launcher dies,
//   its ranks are killed as well.
//
// Returns the exit code of the run:
//   0           all ranks succeeded
//   130         SIGINT was forwarded and no rank failed
//   75          another signal was forwarded, or reached a rank, and the ranks have saved
//   143         another signal was forwarded, or the ranks were ordered to stop, no rank failed,
//               and nothing was saved
//   5           the cause was killed by a signal, or exited with 5
//   2, 3, 130, 143  the cause exited with this code
//   1           the cause exited with any other code
// During the call, the signals above are blocked in the calling thread, and SIGPIPE is ignored, so
// that a run continues if the reader of its output goes away. Throws Error(INTERNAL) if a process
// cannot be started; those already started are killed. At most one call at a time per process.
int launch_ranks(const std::vector<RankCommand>& commands, LaunchReport* report = nullptr);

}  // namespace yoke
