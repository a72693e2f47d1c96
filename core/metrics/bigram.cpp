// The bigram model is the simplest model of text that uses context at all. It predicts a byte from
// the previous one, and fitting it means counting pairs, so it is exact and takes one pass. A
// transformer that stays above its loss has not learned to look back further than one byte, or is
// broken.

#include "core/metrics/bigram.hpp"

#include <cmath>

#include "yoke/error.hpp"
#include "yoke/text.hpp"

namespace yoke {
namespace {

constexpr size_t kBytes = 256;

}  // namespace

BytePairs::BytePairs() : counts_(kBytes * kBytes) {}

void BytePairs::add(std::span<const int64_t> bytes) {
  for (size_t i = 0; i + 1 < bytes.size(); ++i)
    ++counts_[static_cast<size_t>(bytes[i]) * kBytes + static_cast<size_t>(bytes[i + 1])];
  if (!bytes.empty()) total_ += static_cast<int64_t>(bytes.size()) - 1;
}

int64_t BytePairs::count(size_t first, size_t next) const {
  return counts_[first * kBytes + next];
}

double bigram_loss(const BytePairs& training, const BytePairs& held_out, double alpha) {
  if (!(alpha > 0)) {
    throw Error(YOKE_INVALID_ARGUMENT,
                concat("bigram_loss: alpha is ", alpha, "; it must be above 0"));
  }
  if (held_out.total() == 0) {
    throw Error(YOKE_INVALID_ARGUMENT, "bigram_loss: the held-out text has fewer than 2 bytes");
  }
  double sum = 0;
  for (size_t first = 0; first < kBytes; ++first) {
    int64_t total = 0;
    for (size_t next = 0; next < kBytes; ++next) total += training.count(first, next);
    const double denominator = static_cast<double>(total) + kBytes * alpha;
    for (size_t next = 0; next < kBytes; ++next) {
      const int64_t tested = held_out.count(first, next);
      if (tested == 0) continue;  // this would add 0; most pairs do not occur
      const double p = (static_cast<double>(training.count(first, next)) + alpha) / denominator;
      sum -= static_cast<double>(tested) * std::log(p);
    }
  }
  return sum / static_cast<double>(held_out.total());
}

}  // namespace yoke
