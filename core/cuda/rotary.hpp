// Rotary position embedding on a device, in one pass over memory. See kernels.hpp.
#pragma once

#include "core/cuda/elements.hpp"

namespace yoke {

// Rotates the heads of up to two tensors [rows, heads, 2 * half], the queries and the keys, by the
// angles whose cosines and sines are [rows, half]. A row is one token; its heads are contiguous. A
// tensor may be rotated in place.
//
// Element i of the first half of a head and element i of the second half form a pair (a, b), which
// becomes (a cos - b sin, b cos + a sin).
template <class T>
struct Rotation {
  static constexpr Kind kKind = Kind::kRows;
  static constexpr int kWidth = kPack<T>;

  struct Rotated {
    const T* x;
    T* out;
    int64_t x_stride, out_stride;  // elements from one row to the next
    int heads;                     // 0 = there is no such tensor
  };
  Rotated tensors[2];
  const Wide<T>* cos;
  const Wide<T>* sin;
  int64_t rows;
  int half;
  Wide<T> sign;  // factor of the angles: 1 forward, -1 backward

  bool takes_packs() const {
    for (const Rotated& t : tensors) {
      if (!are_aligned({t.x, t.out}) || t.x_stride % kPack<T> != 0 || t.out_stride % kPack<T> != 0)
        return false;
    }
    return half % kPack<T> == 0 && are_aligned({cos, sin});
  }
  int64_t elements_of_row() const { return int64_t{tensors[0].heads + tensors[1].heads} * half; }

  // Rotates the share of one thread of a row, n neighbouring pairs at a time.
  template <int n>
  YOKE_HOST_DEVICE void run(int64_t row, int thread, int threads) const {
    const int of_head = half / n, heads = tensors[0].heads + tensors[1].heads;
    for (int i = thread; i < heads * of_head; i += threads) {
      const int head = i / of_head, within = i % of_head * n;
      const bool second = head >= tensors[0].heads;
      const Rotated& t = tensors[second ? 1 : 0];
      const int64_t in_row = int64_t{second ? head - tensors[0].heads : head} * 2 * half + within;
      const T* const x = t.x + row * t.x_stride + in_row;
      T* const out = t.out + row * t.out_stride + in_row;
      Pack<T, n> a = load<n>(x), b = load<n>(x + half);
      const int64_t angle = row * half + within;
      const Pack<Wide<T>, n> c = load<n>(cos + angle), s = load<n>(sin + angle);
      for (int k = 0; k < n; ++k) {
        const auto u = static_cast<Wide<T>>(a.v[k]), v = static_cast<Wide<T>>(b.v[k]);
        const Wide<T> turn = sign * s.v[k];
        a.v[k] = static_cast<T>(u * c.v[k] - v * turn);
        b.v[k] = static_cast<T>(v * c.v[k] + u * turn);
      }
      store(a, out);
      store(b, out + half);
    }
  }
};

}  // namespace yoke
