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
#include "yoke/adamw_element.hpp"
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
