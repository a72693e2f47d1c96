// Texts for refusals of plans, on top of yoke/plan.h: what is allowed, as a user reads it. No
// LibTorch. All functions are pure and may be called from any thread.
#pragma once

#include <cstdint>
#include <limits>
#include <string>
#include <vector>

#include "yoke/plan.h"
#include "yoke/text.hpp"

namespace yoke {

// Returns the divisors of n in ascending order, up to `most`. n >= 0; zero has none.
inline std::vector<int64_t> divisors(int64_t n,
                                     int64_t most = std::numeric_limits<int64_t>::max()) {
  std::vector<int64_t> found;
  for (int64_t d = yoke_next_divisor(n, 0); d != 0 && d <= most; d = yoke_next_divisor(n, d))
    found.push_back(d);
  return found;
}

// Returns "1, 2, 4".
inline std::string list_text(const std::vector<int64_t>& values) {
  std::string text;
  for (const int64_t value : values) text += concat(text.empty() ? "" : ", ", value);
  return text;
}

// Returns "4 or 6", or only the one that exists.
inline std::string nearest_text(const YokeNearest& nearest) {
  if (nearest.below == 0 || nearest.below == nearest.above) return concat(nearest.above);
  if (nearest.above == 0) return concat(nearest.below);
  return concat(nearest.below, " or ", nearest.above);
}

}  // namespace yoke
