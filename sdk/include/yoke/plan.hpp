// Texts for refusals, on top of yoke/plan.h: lists of allowed values. Does not need LibTorch.
//
//   report.refuse("tp_degree", "3", list_text(divisors(heads)), "the degree divides the heads");
//   concat("nearest: ", nearest_text(yoke_nearest_multiples(batch, ranks)))   // "nearest: 8 or 12"
//
// All functions are pure, may be called from any thread, and throw only std::bad_alloc.
#pragma once

#include <cstdint>
#include <limits>
#include <string>
#include <vector>

#include "yoke/plan.h"
#include "yoke/text.hpp"

namespace yoke {

// Returns the divisors of n that are at most `most`, in ascending order. n >= 0; the result for 0
// is empty. Takes about sqrt(n) steps for each divisor.
inline std::vector<int64_t> divisors(int64_t n,
                                     int64_t most = std::numeric_limits<int64_t>::max()) {
  std::vector<int64_t> found;
  // yoke_next_divisor returns 0 after the last one.
  for (int64_t d = yoke_next_divisor(n, 0); d != 0 && d <= most; d = yoke_next_divisor(n, d))
    found.push_back(d);
  return found;
}

// Returns the values as one text, "1, 2, 4", for the field YokeRefusal.allowed; "" if there are
// none.
inline std::string list_text(const std::vector<int64_t>& values) {
  std::string text;
  for (const int64_t value : values) text += concat(text.empty() ? "" : ", ", value);
  return text;
}

// Returns both values as one text, "4 or 6", or a single value if they are equal or one does not
// exist (0).
inline std::string nearest_text(const YokeNearest& nearest) {
  // A value that is legal itself has below == above.
  if (nearest.below == 0 || nearest.below == nearest.above) return concat(nearest.above);
  if (nearest.above == 0) return concat(nearest.below);
  return concat(nearest.below, " or ", nearest.above);
}

}  // namespace yoke
