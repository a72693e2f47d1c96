// The arithmetic of one element, the same on every device.
//
// All functions are static. kernels_impl.cpp is compiled once per instruction set; with external
// linkage the linker would keep a single copy of each function, perhaps one for AVX-512, and a
// machine without AVX-512 would crash.
#pragma once

#include <cmath>
#include <cstdint>
#include <cstring>

#include "plugins/deepspeed_stub/kernels/kernels.hpp"
#include "yoke/half.h"

namespace yoke::deepspeed_stub {

// Returns x in the type in which its arithmetic is done: fp32 for 16-bit types, else its own type.
static inline YOKE_HOST_DEVICE float widen(BFloat16 x) {
  const uint32_t bits = static_cast<uint32_t>(x.bits) << 16;
  float value;
  std::memcpy(&value, &bits, sizeof value);
  return value;
}
static inline YOKE_HOST_DEVICE float widen(float x) {
  return x;
}
static inline YOKE_HOST_DEVICE double widen(double x) {
  return x;
}
static inline YOKE_HOST_DEVICE float widen(Float16 x) {
  return yoke_half_to_float(x.bits);
}

// Rounds to the nearest bf16, ties to even. NaN stays NaN: a plain rounding of its bits could carry
// into the exponent and yield infinity.
static inline YOKE_HOST_DEVICE BFloat16 round_to_bf16(float x) {
  uint32_t bits;
  std::memcpy(&bits, &x, sizeof bits);
  const uint32_t quiet = (bits >> 16) | 0x40u;
  const uint32_t nearest = (bits + 0x7fffu + ((bits >> 16) & 1u)) >> 16;
  return {static_cast<uint16_t>((bits & 0x7fffffffu) > 0x7f800000u ? quiet : nearest)};
}

// Assigns x, rounded to the type of *y.
template <class From, class To>
static inline YOKE_HOST_DEVICE void assign(From x, To* y) {
  *y = x;
}
static inline YOKE_HOST_DEVICE void assign(float x, BFloat16* y) {
  *y = round_to_bf16(x);
}
static inline YOKE_HOST_DEVICE void assign(float x, Float16* y) {
  y->bits = yoke_float_to_half(x);
}

// The constants of one step of AdamW or a variant, computed in fp64 and rounded once to the type of
// the arithmetic.
template <class T>
struct Coefficients {
  T keep;          // factor of the old value; 1 except for decoupled weight decay
  T l2;            // weight decay that is added to the gradient; 0 except for Adam
  T beta1, beta2;  // decay of the moments
  T rest1, rest2;  // 1 - beta1, 1 - beta2
  T eps;
  T rate;      // lr, divided by the bias correction of the first moment
  T correct2;  // bias correction of sqrt(second moment), as a factor
};
template <class T>
static inline Coefficients<T> coefficients(const YokeAdamW& s) {
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

// One update calls with_decay for the gradient, next_exp_avg and next_exp_avg_sq with the old
// moments, then next_param with the new ones. The formula is that of yoke_adamw in
// yoke/optimizer.h; here the bias corrections are factors and the arithmetic has the type of the
// masters, so that the loop is fast in fp32. The update is split into functions of scalars because
// GCC does not vectorise a loop that has a struct in its body.
template <class T>
static inline YOKE_HOST_DEVICE T with_decay(const Coefficients<T>& c, T g, T param) {
  return g + c.l2 * param;
}
template <class T>
static inline YOKE_HOST_DEVICE T next_exp_avg(const Coefficients<T>& c, T g, T exp_avg) {
  return c.beta1 * exp_avg + c.rest1 * g;
}
template <class T>
static inline YOKE_HOST_DEVICE T next_exp_avg_sq(const Coefficients<T>& c, T g, T exp_avg_sq) {
  return c.beta2 * exp_avg_sq + c.rest2 * g * g;
}
template <class T>
static inline YOKE_HOST_DEVICE T next_param(const Coefficients<T>& c, T param, T m, T v) {
  return c.keep * param - c.rate * m / (std::sqrt(v) * c.correct2 + c.eps);
}

// The constants of one step of Lion. An update calls lion_param and lion_exp_avg, both with the old
// values. The formula is that of yoke_lion in yoke/optimizer.h.
template <class T>
struct LionCoefficients {
  T lr;
  T keep;          // factor of the old value: 1 - lr * weight decay
  T beta1, beta2;  // weight of the moment in the direction, decay of the moment
  T rest1, rest2;  // 1 - beta1, 1 - beta2
};
template <class T>
static inline LionCoefficients<T> coefficients(const YokeLion& s) {
  return {static_cast<T>(s.lr),
          static_cast<T>(s.keep),
          static_cast<T>(s.beta1),
          static_cast<T>(s.beta2),
          static_cast<T>(1 - s.beta1),
          static_cast<T>(1 - s.beta2)};
}
template <class T>
static inline YOKE_HOST_DEVICE T lion_param(const LionCoefficients<T>& c, T param, T g, T exp_avg) {
  const T direction = c.beta1 * exp_avg + c.rest1 * g;
  const T change = direction > 0 ? c.lr : direction < 0 ? -c.lr : T(0);
  return c.keep * param - change;
}
template <class T>
static inline YOKE_HOST_DEVICE T lion_exp_avg(const LionCoefficients<T>& c, T g, T exp_avg) {
  return c.beta2 * exp_avg + c.rest2 * g;
}

// Returns whether the losses cover as many targets as the batch claims.
static inline YOKE_HOST_DEVICE bool target_counts_agree(double counted, double claimed) {
  return std::fabs(counted - claimed) <= 1e-9 * counted;
}

// Sets totals.scale and totals.update from the sums over all ranks; see Kernels::decide_update.
static inline YOKE_HOST_DEVICE void decide_update(const UpdateRule& rule, StepTotals& totals) {
  const double norm = yoke_gradient_norm(totals.squared_norm) / rule.loss_scale;
  totals.scale = yoke_clip_scale(rule.clip, norm) / rule.loss_scale;
  totals.update = std::isfinite(norm) && target_counts_agree(totals.targets, rule.claimed) ? 1 : 0;
}

}  // namespace yoke::deepspeed_stub
