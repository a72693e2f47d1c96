// Observes how a backend behaves in its process: which state of the process it changes, and what it
// prints. A check captures the state before and after a call and compares.
#pragma once

#include <map>
#include <set>
#include <string>
#include <vector>

namespace yoke::conformance {

// The state of the process that a backend must leave unchanged.
struct ProcessState {
  int threads = 0;
  std::map<int, std::string> files;  // target of each open descriptor
  std::vector<std::string> environment;
  std::string folder, locale;
  std::map<int, std::string> signals;  // handler and flags of each signal
  unsigned floating_point = 0;         // rounding mode, exceptions, denormals
  unsigned file_mask = 0;
  int64_t resident_kib = 0;

  static ProcessState capture();
  // Returns a sentence on the first difference from `before`, or "". Threads and memory are not
  // compared, because they may change for a short time.
  std::string changed_since(const ProcessState& before) const;
};

// Waits until the process has no more than this number of threads. Returns false if that takes
// longer than a second. The wait is necessary because the kernel lists a thread for a moment after
// it was joined.
bool threads_return_to(int threads);
// Returns the ids of the threads of this process.
std::set<int> thread_ids();
// Waits until only these threads run, for at most a second. Returns how many others there are then.
size_t threads_left(const std::set<int>& known);

// Redirects stdout and stderr of the process into memory while the object exists. Ranks may run at
// the same time.
class CapturedOutput {
 public:
  CapturedOutput();
  ~CapturedOutput();
  CapturedOutput(const CapturedOutput&) = delete;
  CapturedOutput& operator=(const CapturedOutput&) = delete;
  std::string printed() const;  // output so far, of stdout and stderr

 private:
  int file_, out_, err_;
};

}  // namespace yoke::conformance
