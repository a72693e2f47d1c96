// Exit codes of yoke and yoke-worker. Users and scripts rely on them: never change a number.
#pragma once

namespace yoke {

enum ExitCode : int {
  kExitOk = 0,
  kExitFailed = 1,     // the run or the command failed
  kExitUsage = 2,      // wrong command line, configuration or plan
  kExitPlugin = 3,     // a backend that cannot be found or used
  kExitGate = 4,       // yoke compare: a case differs, or a --gate condition is not met
  kExitRankLost = 5,   // a rank was killed or lost its connection
  kExitSaved = 75,     // stopped by a signal other than SIGINT, after saving: start it again
  kExitSigint = 130,   // stopped by SIGINT
  kExitSigterm = 143,  // stopped by a signal other than SIGINT, and nothing was saved
};

}  // namespace yoke
