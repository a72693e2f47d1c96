// The hash of a piece of state on a device: the number that state_hash() of core/verify computes on
// the CPU. Each CUDA block adds up the hashes of the elements of one slice, and adds that sum to
// the hash of the piece. Sums of integers do not depend on the order, so the hash has the same bits
// in every run. See kernels.hpp.
#pragma once

#include <algorithm>

#include "core/cuda/elements.hpp"

namespace yoke {

// Returns what an element adds to the hash of its tensor: splitmix64's finaliser of the element's
// bits and its index.
YOKE_HOST_DEVICE inline uint64_t element_hash(uint64_t bits, int64_t index) {
  uint64_t x = bits ^ static_cast<uint64_t>(index + 1) * 0x9E3779B97F4A7C15ull;
  x = (x ^ (x >> 30)) * 0xBF58476D1CE4E5B9ull;
  x = (x ^ (x >> 27)) * 0x94D049BB133111EBull;
  return x ^ (x >> 31);
}

// Adds to a number in device memory to which other threads add at the same time.
YOKE_HOST_DEVICE inline void add_atomically(uint64_t* sum, uint64_t value) {
#ifdef __CUDA_ARCH__
  static_assert(sizeof(unsigned long long) == sizeof(uint64_t));
  atomicAdd(reinterpret_cast<unsigned long long*>(sum), value);
#else
  *sum += value;
#endif
}

// Adds the hash of a piece to *sum. Bits: an unsigned integer of the size of an element.
template <class Bits>
struct StateHash {
  static constexpr Kind kKind = Kind::kReductions;
  static constexpr int kWidth = kPack<Bits>;
  static constexpr int64_t kSlice = 1 << 14;  // elements of a slice; a multiple of each kWidth

  const Bits* elements;
  uint64_t* sum;
  int64_t size;       // number of elements, which are contiguous in memory
  int64_t begin;      // index of the first one in the tensor
  StridedRows spans;  // maps an element of the piece to its offset in the tensor from `begin`
  int64_t rows = (size + kSlice - 1) / kSlice;  // number of slices

  bool takes_packs() const {
    return are_aligned({elements}) &&
           (spans.columns == spans.stride || spans.columns % kWidth == 0);
  }
  int64_t elements_of_row() const { return std::min(size, kSlice); }

  // Returns the share of one thread of the sum over a slice.
  template <int n>
  YOKE_HOST_DEVICE ThreadSum<uint64_t> part(int64_t slice, int thread, int threads) const {
    ThreadSum<uint64_t> hash;
    const int64_t first = slice * kSlice, end = size - first < kSlice ? size : first + kSlice;
    const int64_t packed = first + (end - first) / n * n;
    for (int64_t i = first + int64_t{thread} * n; i < packed; i += int64_t{threads} * n)
      add<n>(i, hash);
    for (int64_t i = packed + thread; i < end; i += threads) add<1>(i, hash);
    return hash;
  }

  // Adds up the slices. `hash` is that of all threads.
  YOKE_HOST_DEVICE void finish(int64_t, const ThreadSum<uint64_t>& hash) const {
    add_atomically(sum, hash.value);
  }

 private:
  template <int n>
  YOKE_HOST_DEVICE void add(int64_t first, ThreadSum<uint64_t>& hash) const {
    const Pack<Bits, n> pack = load<n>(elements + first);
    const int64_t index = begin + spans.at(first);
    for (int k = 0; k < n; ++k) hash.value += element_hash(pack.v[k], index + k);
  }
};

}  // namespace yoke
