// Runs one command to its end, in its own process group. Call these functions on one thread only.
// Does not need LibTorch.
#pragma once

#include <chrono>
#include <string>
#include <vector>

#include "core/base/subprocess.hpp"
#include "core/launch/launcher.hpp"

namespace yoke::compare {

struct CommandResult {
  Ending ending;                        // exit code or signal
  bool timed_out = false;               // it was ended because it reached the limit
  double seconds = 0;                   // time that it ran
  std::vector<std::string> last_lines;  // last lines of its output
};

// Makes SIGINT, SIGTERM and SIGHUP end the command that is running, instead of this process.
void catch_interrupts();
// Returns the signal that was caught, or 0.
int interrupted_by();

// Runs the command and waits for its end. stdout and stderr are appended to the file `log`. After
// `limit`, or when a signal is caught, the whole process group gets SIGTERM and, three seconds
// later, SIGKILL. The group also dies if this process dies. Throws Error (INTERNAL) if the command
// cannot be started or the log cannot be written.
CommandResult run_command(const RankCommand& command,
                          const std::string& log,
                          std::chrono::milliseconds limit);

}  // namespace yoke::compare
