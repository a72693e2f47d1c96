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
// thread by a real-time signal for some microseconds; system calls continue, or return EINTR. A
// thread that blocks the signal does not answer and costs 200 ms. One call at a time.
std::vector<ThreadStack> thread_stacks();

}  // namespace yoke
