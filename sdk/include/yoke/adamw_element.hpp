// The update of one element by AdamW or a variant, in the type of the parameters, for loops and
// kernels that must be fast in fp32. yoke_adamw() of yoke/optimizer.h has the same formula in fp64;
// here the bias corrections are factors.
//
//   const AdamWCoefficients<float> c = adamw_coefficients<float>(yoke_adamw_step(...));  // host
//   g = with_decay(c, scale * g, p);
//   m = next_exp_avg(c, g, m);
//   v = next_exp_avg_sq(c, g, v);
//   p = next_param(c, p, m, v);
//
// The update is split into functions of scalars because GCC does not vectorise a loop that has a
// struct in its body. All functions are static, so that a file which is compiled once per
// instruction set keeps its own copies. C++ and CUDA device code; any thread.
#pragma once

#include <cmath>

#include "yoke/optimizer.h"

namespace yoke {

// The constants of one step, computed in fp64 and rounded once.
template <class T>
struct AdamWCoefficients {
  T keep;          // factor of the old value; 1 except for decoupled weight decay
  T l2;            // weight decay that is added to the gradient; 0 except for Adam
  T beta1, beta2;  // decay of the moments
  T rest1, rest2;  // 1 - beta1, 1 - beta2
  T eps;
  T rate;      // lr, divided by the bias correction of the first moment
  T correct2;  // bias correction of sqrt(second moment), as a factor
};
template <class T>
static inline AdamWCoefficients<T> adamw_coefficients(const YokeAdamW& s) {
  return {static_cast<T>(s.keep),
          static_cast<T>(s.l2),
          static_cast<T>(s.beta1),
          static_cast<T>(s.beta2),
          static_cast<T>(1 - s.beta1),
          static_cast<T>(1 - s.beta2),
          static_cast<T>(s.eps),
          static_cast<T>(s.lr / s.correct1),
          static_cast<T>(1 / s.correct2)};
}

template <class T>
static inline YOKE_HOST_DEVICE T with_decay(const AdamWCoefficients<T>& c, T g, T param) {
  return g + c.l2 * param;
}
template <class T>
static inline YOKE_HOST_DEVICE T next_exp_avg(const AdamWCoefficients<T>& c, T g, T exp_avg) {
  return c.beta1 * exp_avg + c.rest1 * g;
}
template <class T>
static inline YOKE_HOST_DEVICE T next_exp_avg_sq(const AdamWCoefficients<T>& c, T g, T exp_avg_sq) {
  return c.beta2 * exp_avg_sq + c.rest2 * g * g;
}
template <class T>
static inline YOKE_HOST_DEVICE T next_param(const AdamWCoefficients<T>& c, T param, T m, T v) {
  return c.keep * param - c.rate * m / (std::sqrt(v) * c.correct2 + c.eps);
}

}  // namespace yoke
