// Where a run stands, for somebody who watches it on a terminal.
#pragma once

#include <cstdint>
#include <string>

namespace yoke {

struct Progress {
  int64_t first = 0;  // the step that this run started behind
  int64_t step = 0;   // done
  int64_t steps = 0;  // in all
  double loss = 0;
  double tps = 0;      // tokens per second of the last steps; 0 = not known yet
  double seconds = 0;  // since the run started behind `first`
};

// "step 120/300 [########------------]  40%  loss 1.6123  10,849 tps  3m 04s left"
std::string progress_line(const Progress& progress);

}  // namespace yoke
