// Scalar functions that the compiler can vectorise, for the files that are compiled once per
// instruction set.
//
// Everything here has internal linkage and uses nothing of the C++ standard library. An inline
// function of the standard library, compiled here for wide vectors, could be the copy that the
// linker keeps for the whole program, which would then crash on older processors.
#pragma once

#include "core/kernels/cpu_kernels.hpp"
#include "yoke/half.h"

namespace yoke {
namespace {

// std::bit_cast, without the standard library.
template <class To, class From>
inline To bits_of(From from) {
  static_assert(sizeof(To) == sizeof(From));
  To to;
  __builtin_memcpy(&to, &from, sizeof to);
  return to;
}

// Converts an element to the type in which it is computed; store() converts back.
inline float wide(float x) {
  return x;
}
inline double wide(double x) {
  return x;
}
inline float wide(BFloat16 x) {
  return bits_of<float>(uint32_t{x.bits} << 16);
}
inline float wide(Float16 x) {
  return yoke_half_to_float(x.bits);
}

inline void store(float& to, float x) {
  to = x;
}
inline void store(double& to, double x) {
  to = x;
}
// Rounds to nearest, ties to even. The rounding would turn some NaNs into infinity, so a NaN
// becomes the quiet NaN 0x7fc0.
inline void store(BFloat16& to, float x) {
  const uint32_t bits = bits_of<uint32_t>(x);
  const uint32_t rounded = (bits + 0x7fff + ((bits >> 16) & 1)) >> 16;
  to.bits = static_cast<uint16_t>(x == x ? rounded : 0x7fc0);
}

inline void store(Float16& to, float x) {
  to.bits = yoke_float_to_half(x);
}

inline float root(float x) {
  return __builtin_sqrtf(x);
}
inline double root(double x) {
  return __builtin_sqrt(x);
}
inline float log_of(float x) {
  return __builtin_logf(x);
}
inline double log_of(double x) {
  return __builtin_log(x);
}

// exp(x) = 2^n exp(r) with n = round(x / ln 2) and r in [-ln 2 / 2, ln 2 / 2], where exp(r) is
// approximated by a polynomial of the Cephes library. The relative error is below 2e-7 between -87
// and 88; outside of these bounds the result is constant. A NaN stays a NaN. The function exists
// because a call would not vectorise; it is therefore always inlined.
__attribute__((always_inline)) inline float exp_of(float x) {
  x = x > 88.0f ? 88.0f : x;
  x = x < -87.0f ? -87.0f : x;
  // 1.5 * 2^23. A float of this size has no fractional bits, so adding the constant rounds to an
  // integer and leaves that integer in the low bits.
  constexpr float kShift = 12582912.0f;
  const float shifted = x * 1.44269504088896341f + kShift;
  const float n = shifted - kShift;
  // ln 2 in two parts: the first has few bits, so its product with n is exact.
  const float r = (x - n * 0.693359375f) - n * -2.12194440e-4f;
  float p = 1.9875691500e-4f;
  p = p * r + 1.3981999507e-3f;
  p = p * r + 8.3334519073e-3f;
  p = p * r + 4.1665795894e-2f;
  p = p * r + 1.6666665459e-1f;
  p = p * r + 5.0000001201e-1f;
  // 2^n, by writing n into the exponent.
  const float power = bits_of<float>((bits_of<uint32_t>(shifted) << 23) + 0x3f800000u);
  return (p * r * r + r + 1.0f) * power;
}
inline double exp_of(double x) {
  return __builtin_exp(x);
}

}  // namespace
}  // namespace yoke
