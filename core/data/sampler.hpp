// The order in which the windows of a data set are trained on. No LibTorch.
#pragma once

#include <cstdint>
#include <memory>
#include <vector>

namespace yoke {

// Returns the position of `index` in a pseudo-random order of [0, n) that `key` selects. The order
// is a bijection and is stored nowhere. Requires n >= 1 and index < n.
uint64_t keyed_permutation(uint64_t index, uint64_t n, uint64_t key);

// Maps global sample numbers to windows of one part of the data: the training part or the held-out
// part. Immutable; may be used from any thread.
class Sampler {
 public:
  // The part consists of windows [first_window, first_window + num_windows).
  Sampler(int64_t first_window, int64_t num_windows, bool shuffled, uint64_t seed);
  // Sample n is window first_window + order[n % order->size()]. The order is not empty.
  // num_windows: windows of one epoch.
  Sampler(int64_t first_window,
          int64_t num_windows,
          std::shared_ptr<const std::vector<uint32_t>> order);

  // Returns the number of windows of one epoch.
  int64_t num_windows() const { return num_windows_; }

  // Returns the window of global sample `sample`. An epoch is num_windows() samples and contains
  // every window once: in ascending order, or, if shuffled, in a different order in each epoch.
  // Throws Error: INVALID_ARGUMENT if sample < 0, FAILED_PRECONDITION if the part has no window.
  int64_t window(int64_t sample) const;

 private:
  int64_t first_window_, num_windows_;
  bool shuffled_ = false;
  uint64_t seed_ = 0;
  std::shared_ptr<const std::vector<uint32_t>> order_;  // NULL: computed
};

}  // namespace yoke
