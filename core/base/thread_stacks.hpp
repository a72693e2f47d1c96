// The native stacks of all threads of this process, to see where a rank hangs.
#pragma once

#include <string>
#include <vector>

namespace yoke {

struct ThreadStack {
  int id = 0;                       // as in /proc/self/task
  std::string name;                 // as in ps and top; the main thread has the program's name
  std::vector<std::string> frames;  // innermost first; empty if the thread did not answer
};

// Returns the stacks of all threads but the calling one, the main thread first. Interrupts each
// thread by the signal SIGRTMIN + 3, whose handler it replaces, for some microseconds; system calls
// continue, or return EINTR. Threads that block the signal do not answer and cost 200 ms each, 600
// ms at most. The caller must make sure that no two calls overlap. Throws what the standard library
// throws if /proc cannot be read.
std::vector<ThreadStack> thread_stacks();

}  // namespace yoke
