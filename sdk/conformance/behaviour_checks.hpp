// What a backend must leave alone in its process, looked at before and after.
#pragma once

#include <map>
#include <string>
#include <vector>

namespace yoke::conformance {

struct ProcessState {
  int threads = 0;
  std::map<int, std::string> files;  // open descriptors: what each one is
  std::vector<std::string> environment;
  std::string folder, locale;
  std::map<int, std::string> signals;  // handler and mask of every signal
  unsigned floating_point = 0;         // rounding, exceptions, denormals
  unsigned file_mask = 0;
  int64_t resident_kib = 0;

  static ProcessState capture();
  // "" or the first thing that changed since `before`. Threads and memory are not compared.
  std::string changed_since(const ProcessState& before) const;
};

// Waits up to a second until there are no more threads than that: joining takes a moment to be
// seen.
bool threads_return_to(int threads);

// While it lives, what the process prints goes into a file; ranks may run meanwhile.
class CapturedOutput {
 public:
  CapturedOutput();
  ~CapturedOutput();
  CapturedOutput(const CapturedOutput&) = delete;
  CapturedOutput& operator=(const CapturedOutput&) = delete;
  std::string printed() const;  // on stdout and stderr

 private:
  int file_, out_, err_;
};

}  // namespace yoke::conformance
