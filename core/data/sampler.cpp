// A shuffled order that is computed, not stored. Every rank computes the window of any sample by
// itself, from the seed and the epoch: nothing is exchanged or restored, and a resumed run
// continues exactly. A permutation in memory, the usual solution, would need 8 bytes per window on
// every rank and would have to be saved in checkpoints.
#include "core/data/sampler.hpp"

#include <bit>
#include <string>

#include "core/base/mix.hpp"
#include "yoke/error.hpp"
#include "yoke/text.hpp"

namespace yoke {
namespace {

// A Feistel network over 2 * half_bits bits. It is a bijection for any round function, because each
// round can be undone: `right` stays unchanged, and from it the mask on `left` can be recomputed.
uint64_t feistel(uint64_t value, int half_bits, uint64_t key) {
  constexpr int kRounds = 4;
  const uint64_t mask = (uint64_t{1} << half_bits) - 1;
  uint64_t left = value >> half_bits, right = value & mask;
  for (int round = 0; round < kRounds; ++round) {
    const uint64_t next =
        left ^ (mix64(key + static_cast<uint64_t>(round) * 0x9E3779B97F4A7C15ull + right) & mask);
    left = right;
    right = next;
  }
  return (left << half_bits) | right;
}

}  // namespace

// The Feistel network permutes [0, 4^k) for the smallest 4^k >= n, so it may map an index outside
// [0, n). Applying it again until the result is inside restricts the bijection to [0, n). Because
// 4^k is less than 4 n, this takes fewer than 4 steps on average.
uint64_t keyed_permutation(uint64_t index, uint64_t n, uint64_t key) {
  const int half_bits = n <= 4 ? 1 : (std::bit_width(n - 1) + 1) / 2;
  do {
    index = feistel(index, half_bits, key);
  } while (index >= n);
  return index;
}

Sampler::Sampler(int64_t first_window, int64_t num_windows, bool shuffled, uint64_t seed)
    : first_window_(first_window), num_windows_(num_windows), shuffled_(shuffled), seed_(seed) {}

Sampler::Sampler(int64_t first_window,
                 int64_t num_windows,
                 std::shared_ptr<const std::vector<uint32_t>> order)
    : first_window_(first_window), num_windows_(num_windows), order_(std::move(order)) {}

int64_t Sampler::window(int64_t sample) const {
  if (num_windows_ == 0)
    throw Error(YOKE_FAILED_PRECONDITION, "this part of the data has no window");
  if (sample < 0)
    throw Error(YOKE_INVALID_ARGUMENT, concat("sample ", sample, "; allowed: 0 or more"));
  if (order_) return first_window_ + (*order_)[static_cast<size_t>(sample) % order_->size()];
  const int64_t epoch = sample / num_windows_, index = sample % num_windows_;
  if (!shuffled_) return first_window_ + index;
  // Mixing the seed first keeps (seed 1, epoch 2) and (seed 2, epoch 1) apart.
  const uint64_t key = mix64(mix64(seed_) + static_cast<uint64_t>(epoch));
  return first_window_ +
         static_cast<int64_t>(keyed_permutation(
             static_cast<uint64_t>(index), static_cast<uint64_t>(num_windows_), key));
}

}  // namespace yoke
