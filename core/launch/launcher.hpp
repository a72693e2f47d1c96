// Runs the ranks of one machine as processes and answers for them: output, signals, failures, no
// orphans. No LibTorch, one thread.
#pragma once

#include <string>
#include <utility>
#include <vector>

namespace yoke {

// One process to start.
struct RankCommand {
  std::vector<std::string> argv;                               // argv[0]: an absolute path
  std::vector<std::pair<std::string, std::string>> variables;  // added to our environment
};

// Starts all commands and returns when all of them have ended.
//
// Output   Line by line. stdout of rank 0 passes as it is; everything else gets "[rank R] " in
// front, if
//          there is more than one rank. stdin of the ranks is /dev/null.
//          Lines that begin with kProgressMark (console.hpp) are shown in place on a terminal, else
//          not at all. If nobody reads what we write, the ranks wait for it in turn; signals do
//          not.
// Signals  The first SIGINT, SIGTERM or SIGHUP is forwarded as SIGINT or SIGTERM; the ranks end
// their step and
//          save. The second one kills them.
// Failure  The first rank that fails is named on stderr with its exit code or signal and its last
// lines.
//          Of several within 200 ms, one killed by a signal comes first, and one that merely lost
//          its peer (exit code 5) last. The others get SIGTERM, 1.5 s later SIGKILL; what they
//          still print is not shown.
// Orphans  Each rank leads a process group that is killed when the rank has ended; ranks die with
// us.
//
// Returns the exit code of the run: 0; 130 or 143 after a forwarded signal; else by the first
// cause: 5 if it was killed by a signal or exited with 5; 2, 3, 130, 143 if it exited with that;
// else 1. While it runs, the signals above are blocked in the calling thread and SIGPIPE is
// ignored: a run does not end because nobody reads its output any more. Throws Error(INTERNAL) if a
// process cannot be started; those already started are killed.
int launch_ranks(const std::vector<RankCommand>& commands);

}  // namespace yoke
