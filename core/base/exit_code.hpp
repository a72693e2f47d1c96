// Exit codes of yoke and yoke-worker; users and scripts rely on them.
#pragma once

namespace yoke {

enum ExitCode : int {
  kExitOk = 0,
  kExitFailed = 1,    // the run failed
  kExitUsage = 2,     // command line, config or plan
  kExitPlugin = 3,    // a backend cannot be found or used
  kExitGate = 4,      // a comparison gate
  kExitRankLost = 5,  // a rank was killed or vanished
  kExitSigint = 130,
  kExitSigterm = 143,
};

}  // namespace yoke
