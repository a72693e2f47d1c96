// Why two runs differ, from what they left. Does not need LibTorch.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "core/compare/agreement.hpp"

namespace yoke::compare {

// A class of cause. kinds() lists all, worst evidence last.
struct LikelyCause {
  std::string id;           // "missing_reduction"
  std::string title;        // "missing reduction"
  int64_t step = -1;        // the first bad one
  std::string tensor;       // the first bad one, in the order of the model; "" = none in particular
  double size = 0;          // of the difference there, relative; NaN = not known
  std::string explanation;  // what it was concluded from
};

// The steps whose states find_likely_cause() wants of both runs for a difference that begins at `first_bad`.
std::vector<int64_t> wanted_states(int64_t first_bad);

// The cause of the difference between a run and its reference. Looks at the states that are there;
// without them it knows less. Never fails: id "unknown" says what is known.
LikelyCause find_likely_cause(const RunFacts& reference,
                              const RunFacts& run,
                              const Agreement& agreement);

}  // namespace yoke::compare
