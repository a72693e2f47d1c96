// The bigram model is the simplest model of text that uses context at all. It predicts a byte from
// the previous one, and fitting it means counting pairs, so it is exact and takes one pass. A
// transformer that stays above its loss has not learned to look back further than one byte, or is
// broken.

#include "core/metrics/bigram.hpp"

#include <cmath>
#include <vector>

#include "yoke/error.hpp"
#include "yoke/text.hpp"

namespace yoke {
namespace {

constexpr size_t kBytes = 256;

// Returns a table with count(first, next) at [first * 256 + next].
std::vector<int64_t> count_pairs(std::span<const uint8_t> text) {
  std::vector<int64_t> pairs(kBytes * kBytes);
  for (size_t i = 0; i + 1 < text.size(); ++i) ++pairs[text[i] * kBytes + text[i + 1]];
  return pairs;
}

}  // namespace

double bigram_loss(std::span<const uint8_t> training,
                   std::span<const uint8_t> held_out,
                   double alpha) {
  if (!(alpha > 0)) {
    throw Error(YOKE_INVALID_ARGUMENT,
                concat("bigram_loss: alpha is ", alpha, "; it must be above 0"));
  }
  if (held_out.size() < 2) {
    throw Error(YOKE_INVALID_ARGUMENT, "bigram_loss: the held-out text has fewer than 2 bytes");
  }
  const std::vector<int64_t> fitted = count_pairs(training);
  const std::vector<int64_t> tested = count_pairs(held_out);
  double sum = 0;
  for (size_t first = 0; first < kBytes; ++first) {
    int64_t total = 0;
    for (size_t next = 0; next < kBytes; ++next) total += fitted[first * kBytes + next];
    const double denominator = static_cast<double>(total) + kBytes * alpha;
    for (size_t next = 0; next < kBytes; ++next) {
      const size_t pair = first * kBytes + next;
      if (tested[pair] == 0) continue;  // this would add 0; most pairs do not occur
      const double p = (static_cast<double>(fitted[pair]) + alpha) / denominator;
      sum -= static_cast<double>(tested[pair]) * std::log(p);
    }
  }
  return sum / static_cast<double>(held_out.size() - 1);
}

}  // namespace yoke
