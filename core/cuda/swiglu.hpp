// silu(gate) * up on a device, in one pass over memory. See kernels.hpp.
#pragma once

#include <cmath>

#include "core/cuda/elements.hpp"

namespace yoke {

template <class W>
YOKE_HOST_DEVICE W sigmoid(W x) {
  return 1 / (1 + std::exp(-x));
}

// out = silu(gate) * up, for `count` elements.
template <class T>
struct Swiglu {
  static constexpr Kind kKind = Kind::kElements;
  static constexpr int kWidth = kPack<T>;

  const T* gate;
  const T* up;
  T* out;
  int64_t count;
  StridedRows rows;  // those of gate and up

  bool takes_packs() const {
    return count % kPack<T> == 0 && rows.takes_packs<T>() && are_aligned({gate, up, out});
  }

  // Computes the n elements from `first` on.
  template <int n>
  YOKE_HOST_DEVICE void run(int64_t first) const {
    const int64_t from = rows.at(first);
    Pack<T, n> g = load<n>(gate + from);
    const Pack<T, n> u = load<n>(up + from);
    for (int k = 0; k < n; ++k) {
      const auto x = static_cast<Wide<T>>(g.v[k]);
      g.v[k] = static_cast<T>(x * sigmoid(x) * static_cast<Wide<T>>(u.v[k]));
    }
    store(g, out + first);
  }
};

// The gradients of gate and up. silu(gate) is computed again, which is cheaper than reading it.
template <class T>
struct SwigluBackward {
  static constexpr Kind kKind = Kind::kElements;
  static constexpr int kWidth = kPack<T>;

  const T* gate;
  const T* up;
  const T* dy;
  T* dgate;
  T* dup;
  int64_t count;
  StridedRows rows, gradient_rows;  // those of gate and up, and those of dgate and dup

  bool takes_packs() const {
    return count % kPack<T> == 0 && rows.takes_packs<T>() && gradient_rows.takes_packs<T>() &&
           are_aligned({gate, up, dy, dgate, dup});
  }

  // Computes the n elements from `first` on.
  template <int n>
  YOKE_HOST_DEVICE void run(int64_t first) const {
    const int64_t from = rows.at(first), to = gradient_rows.at(first);
    Pack<T, n> g = load<n>(gate + from), u = load<n>(up + from);
    const Pack<T, n> d = load<n>(dy + first);
    for (int k = 0; k < n; ++k) {
      const auto x = static_cast<Wide<T>>(g.v[k]), y = static_cast<Wide<T>>(d.v[k]);
      const Wide<T> s = sigmoid(x);
      g.v[k] = static_cast<T>(y * static_cast<Wide<T>>(u.v[k]) * s * (1 + x * (1 - s)));
      u.v[k] = static_cast<T>(y * x * s);
    }
    store(g, dgate + to);
    store(u, dup + to);
  }
};

}  // namespace yoke
