// Finds the likely cause of a difference between two runs from what they recorded. Does not need
// LibTorch.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "core/compare/agreement.hpp"

namespace yoke::compare {

// LikelyCause names the kind of bug that explains a difference best, and where it was seen first.
struct LikelyCause {
  std::string id;           // such as "missing_reduction"; "unknown" if no rule applies
  std::string title;        // such as "missing reduction"
  int64_t step = -1;        // first step that differs
  std::string tensor;       // first tensor that differs, in the order of the model; "" = unknown
  double size = 0;          // size of the difference relative to the reference; NaN = unknown
  std::string explanation;  // the observations that led to this cause
};

// Returns the steps whose states find_likely_cause() needs from both runs if they first differ at
// step `first_bad`.
std::vector<int64_t> wanted_states(int64_t first_bad);

// Returns the likely cause of the difference between a run and its reference. It uses the states
// that were saved; without them fewer causes can be recognised. If none is, the id is "unknown" and
// the explanation reports what is known. Throws Error if a state cannot be read.
LikelyCause find_likely_cause(const RunFacts& reference,
                              const RunFacts& run,
                              const Agreement& agreement);

}  // namespace yoke::compare
