// Runs a short program to its end and keeps what it prints. No LibTorch.
#pragma once

#include <sys/types.h>

#include <chrono>
#include <optional>
#include <string>
#include <vector>

#include "core/base/file_descriptor.hpp"

namespace yoke {

struct SubprocessOptions {
  std::optional<std::chrono::milliseconds> limit;  // killed after it; empty = no limit
  bool capture_err = true;                         // false: stderr goes where ours goes
};

// How a process ended. Exactly one of exit_code >= 0, signal > 0 holds.
struct Ending {
  int exit_code = -1;
  int signal = 0;
  bool ok() const { return exit_code == 0; }
};
// "exit code 3", "signal 11 (SIGSEGV)"
std::string ending_text(const Ending& ending);
Ending ending_of(int wait_status);

struct SubprocessResult {
  Ending ending;
  bool timed_out = false;
  std::string out;
  std::string err;
};

// A descriptor that becomes readable when the child has ended. Throws Error(INTERNAL) after killing
// it if the system has none.
FileDescriptor watch_child(pid_t pid);

// Starts argv[0], an absolute path, with stdin from /dev/null, and waits for its end. It stays in
// our process group, so that Ctrl-C reaches it. Throws Error(INTERNAL) if it cannot be started.
SubprocessResult run_subprocess(const std::vector<std::string>& argv,
                                const SubprocessOptions& options = {});

}  // namespace yoke
