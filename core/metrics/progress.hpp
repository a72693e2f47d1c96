// Progress lines, for a user who watches a run, or another long command, on a terminal.
#pragma once

#include <cstdint>
#include <string>

namespace yoke {

struct Progress {
  int64_t first = 0;   // last step before this process started or resumed the run
  int64_t step = 0;    // last completed step
  int64_t steps = 0;   // number of steps of the run
  double loss = 0;     // loss of the last step
  double tps = 0;      // tokens per second over the last steps; 0 = not known yet
  double seconds = 0;  // time since this process started or resumed the run
};

// Returns "step 120/300 [########------------]  40%  loss 1.6123  10,849 tps  3m 04s left". The
// remaining time is estimated from the steps of this process only.
std::string progress_line(const Progress& progress);

// Returns "[########------------]  40%". 0 <= done <= total; a total of 0 counts as completed.
std::string progress_bar(int64_t done, int64_t total);

}  // namespace yoke
