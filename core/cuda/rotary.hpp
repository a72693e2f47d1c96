// Rotary position embedding on a device, in one pass over memory. See kernels.hpp.
#pragma once

#include "core/cuda/elements.hpp"

namespace yoke {

// Rotates x [rows, heads, 2 * half] by the angles whose cosines and sines are [rows, half]. All
// tensors are contiguous; x and out may be the same memory. A row is one token.
//
// Element i of the first half of a head and element i of the second half form a pair (a, b), which
// becomes (a cos - b sin, b cos + a sin).
template <class T>
struct Rotation {
  const T* x;
  const Wide<T>* cos;
  const Wide<T>* sin;
  T* out;
  int64_t rows;
  int heads, half;
  Wide<T> sign;  // factor of the angles: 1 forward, -1 backward

  bool takes_packs() const { return half % kPack<T> == 0 && are_aligned({x, cos, sin, out}); }
  int64_t elements_of_row() const { return int64_t{heads} * half; }

  // Rotates the share of one thread of a row, n neighbouring pairs at a time.
  template <int n>
  YOKE_HOST_DEVICE void run(int64_t row, int thread, int threads) const {
    const int of_head = half / n;
    for (int i = thread; i < heads * of_head; i += threads) {
      const int head = i / of_head, within = i % of_head * n;
      const int64_t first = (row * heads + head) * 2 * half + within, angle = row * half + within;
      Pack<T, n> a = load<n>(x + first), b = load<n>(x + first + half);
      const Pack<Wide<T>, n> c = load<n>(cos + angle), s = load<n>(sin + angle);
      for (int k = 0; k < n; ++k) {
        const auto u = static_cast<Wide<T>>(a.v[k]), v = static_cast<Wide<T>>(b.v[k]);
        const Wide<T> turn = sign * s.v[k];
        a.v[k] = static_cast<T>(u * c.v[k] - v * turn);
        b.v[k] = static_cast<T>(v * c.v[k] + u * turn);
      }
      store(a, out + first);
      store(b, out + first + half);
    }
  }
};

}  // namespace yoke
