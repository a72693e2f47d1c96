// Runs a short-lived program, or a function in a process of its own, and returns what it printed
// and how it ended.
#pragma once

#include <sys/types.h>

#include <chrono>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "core/base/file_descriptor.hpp"

namespace yoke {

struct SubprocessOptions {
  std::optional<std::chrono::milliseconds> limit;  // time after which it is killed; empty = none
  bool capture_err = true;                         // false: the program inherits our stderr
};

// How a process ended: either it exited (exit_code >= 0) or a signal killed it (signal > 0).
struct Ending {
  int exit_code = -1;
  int signal = 0;
  bool ok() const { return exit_code == 0; }
};
// Returns "exit code 3" or "signal 11 (SIGSEGV)".
std::string ending_text(const Ending& ending);
// Decodes the status that waitpid() stores.
Ending ending_of(int wait_status);

struct SubprocessResult {
  Ending ending;
  bool timed_out = false;  // true if it was killed because of SubprocessOptions::limit
  std::string out;         // all of its stdout
  std::string err;         // all of its stderr, if captured
};

// Returns a descriptor (a pidfd) that becomes readable when the child has ended. If the system
// cannot provide one, kills the child and throws Error(INTERNAL).
FileDescriptor watch_child(pid_t pid);

// Starts the program argv[0], an absolute path, with stdin from /dev/null, and waits until it has
// ended. It stays in our process group, so that Ctrl-C reaches it as well. Throws Error(INTERNAL)
// if it cannot be started, and RESOURCE_EXHAUSTED if no pipe can be made. Thread-safe.
SubprocessResult run_subprocess(const std::vector<std::string>& argv,
                                const SubprocessOptions& options = {});

// Runs `body` in a copy of this process, with stdin from /dev/null, and waits until it has ended.
// The exit code is what `body` returns, or 1 if it throws. What this process has loaded need not be
// loaded again, unlike in a program of its own. The copy has only the calling thread, so no other
// thread may hold a lock that `body` needs. It handles signals as a new program would, and ends
// without running functions of atexit() or destructors of static objects. Errors are those of
// run_subprocess().
SubprocessResult run_copy(const std::function<int()>& body, const SubprocessOptions& options = {});

}  // namespace yoke
