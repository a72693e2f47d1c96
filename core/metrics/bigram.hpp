// A baseline for language models of bytes: a model that has learned anything must have a lower
// loss.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

namespace yoke {

// Counts pairs of neighbouring bytes. Not thread-safe.
class BytePairs {
 public:
  BytePairs();
  // Counts the pairs of a text. Texts of several calls are not joined. bytes: each in [0, 255].
  void add(std::span<const int64_t> bytes);
  // Returns how often byte `next` followed byte `first`, and how many pairs there are.
  int64_t count(size_t first, size_t next) const;
  int64_t total() const { return total_; }

 private:
  std::vector<int64_t> counts_;
  int64_t total_ = 0;
};

// Fits P(next | byte) = (count(byte, next) + alpha) / (count(byte) + 256 alpha) to the pairs of
// `training`. Returns the mean of -ln P over all pairs of `held_out`, in nats per byte. Throws
// Error (INVALID_ARGUMENT) unless alpha > 0 and held_out has a pair.
double bigram_loss(const BytePairs& training, const BytePairs& held_out, double alpha);

}  // namespace yoke
