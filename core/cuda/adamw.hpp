// AdamW and its variants on a device, in one pass over memory. See kernels.hpp.
#pragma once

#include <algorithm>

#include "core/cuda/elements.hpp"
#include "yoke/adamw_element.hpp"

namespace yoke {

// Updates `count` parameters and their moments. The formula is that of yoke/adamw_element.hpp. The
// gradients are divided by *divisor; NULL = by 1. If *skip is not 0, nothing changes; NULL = never.
// Unless `copy` is NULL, the new parameters are also written there, in the type in which the model
// computes. All numbers are read from device memory, so that a recorded update can be replayed with
// others.
template <class Master, class Gradient, class Copy>
struct AdamWUpdate {
  static constexpr Kind kKind = Kind::kElements;
  static constexpr int kWidth =
      kAccessBytes / static_cast<int>(std::min({sizeof(Master), sizeof(Gradient), sizeof(Copy)}));

  Master* param;
  Master* exp_avg;
  Master* exp_avg_sq;
  const Gradient* gradient;
  Copy* copy;
  const AdamWCoefficients<Master>* coefficients;
  const double* divisor;
  const float* skip;
  int64_t count;

  bool takes_packs() const {
    return count % kWidth == 0 && are_aligned({param, exp_avg, exp_avg_sq, gradient, copy});
  }

  // Returns the update of the elements [begin, end).
  AdamWUpdate part(int64_t begin, int64_t end) const {
    AdamWUpdate update = *this;
    update.param += begin;
    update.exp_avg += begin;
    update.exp_avg_sq += begin;
    update.gradient += begin;
    if (copy != nullptr) update.copy += begin;
    update.count = end - begin;
    return update;
  }

  // Updates the n elements from `first` on.
  template <int n>
  YOKE_HOST_DEVICE void run(int64_t first) const {
    if (skip != nullptr && *skip != 0) return;
    const AdamWCoefficients<Master> c = *coefficients;
    const Master scale = divisor != nullptr ? static_cast<Master>(1 / *divisor) : 1;
    const Pack<Gradient, n> g = load<n>(gradient + first);
    Pack<Master, n> p = load<n>(param + first), m = load<n>(exp_avg + first),
                    v = load<n>(exp_avg_sq + first);
    Pack<Copy, n> rounded;
    for (int k = 0; k < n; ++k) {
      const Master clipped = with_decay(c, scale * static_cast<Master>(g.v[k]), p.v[k]);
      m.v[k] = next_exp_avg(c, clipped, m.v[k]);
      v.v[k] = next_exp_avg_sq(c, clipped, v.v[k]);
      p.v[k] = next_param(c, p.v[k], m.v[k], v.v[k]);
      rounded.v[k] = static_cast<Copy>(p.v[k]);
    }
    store(p, param + first);
    store(m, exp_avg + first);
    store(v, exp_avg_sq + first);
    if (copy != nullptr) store(rounded, copy + first);
  }
};

}  // namespace yoke
