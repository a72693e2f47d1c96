// Runs one command to its end in a process group of its own. No LibTorch, one thread.
#pragma once

#include <chrono>
#include <string>
#include <vector>

#include "core/base/subprocess.hpp"
#include "core/launch/launcher.hpp"

namespace yoke::compare {

struct CommandResult {
  Ending ending;
  bool timed_out = false;
  double seconds = 0;
  std::vector<std::string> last_lines;  // that it printed
};

// SIGINT, SIGTERM and SIGHUP end the command that runs, and are remembered.
void catch_interrupts();
int interrupted_by();  // the signal, or 0

// stdout and stderr go to the file `log`. After `limit`, or if we are interrupted, the whole group
// gets SIGTERM and, three seconds later, SIGKILL. The group dies with us. Throws Error(INTERNAL) if
// the command cannot be started or the log cannot be written.
CommandResult run_command(const RankCommand& command,
                          const std::string& log,
                          std::chrono::milliseconds limit);

}  // namespace yoke::compare
