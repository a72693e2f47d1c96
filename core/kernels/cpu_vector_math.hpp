// Scalar functions that vectorise, for the files compiled once per instruction set. Everything here
// has internal linkage and calls nothing of the standard library: an inline function of it,
// compiled for wide vectors, could replace everybody's.
#pragma once

#include "core/kernels/cpu_kernels.hpp"

namespace yoke {
namespace {

template <class To, class From>
inline To bits_of(From from) {
  static_assert(sizeof(To) == sizeof(From));
  To to;
  __builtin_memcpy(&to, &from, sizeof to);
  return to;
}

inline float wide(float x) {
  return x;
}
inline double wide(double x) {
  return x;
}
inline float wide(BFloat16 x) {
  return bits_of<float>(uint32_t{x.bits} << 16);
}

inline void store(float& to, float x) {
  to = x;
}
inline void store(double& to, double x) {
  to = x;
}
// To nearest, ties to even; a NaN stays one.
inline void store(BFloat16& to, float x) {
  const uint32_t bits = bits_of<uint32_t>(x);
  const uint32_t rounded = (bits + 0x7fff + ((bits >> 16) & 1)) >> 16;
  to.bits = static_cast<uint16_t>(x == x ? rounded : 0x7fc0);
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

// exp by range reduction to [-ln 2 / 2, ln 2 / 2] and a polynomial (Cephes); relative error below
// 2e-7 between -87 and 88, constant outside. Unlike a call of the library it vectorises. A NaN
// stays one.
inline float exp_of(float x) {
  x = x > 88.0f ? 88.0f : x;
  x = x < -87.0f ? -87.0f : x;
  constexpr float kShift =
      12582912.0f;  // 1.5 * 2^23: adding it rounds to an integer in the low bits
  const float shifted = x * 1.44269504088896341f + kShift;
  const float n = shifted - kShift;
  const float r = (x - n * 0.693359375f) - n * -2.12194440e-4f;
  float p = 1.9875691500e-4f;
  p = p * r + 1.3981999507e-3f;
  p = p * r + 8.3334519073e-3f;
  p = p * r + 4.1665795894e-2f;
  p = p * r + 1.6666665459e-1f;
  p = p * r + 5.0000001201e-1f;
  const float power = bits_of<float>((bits_of<uint32_t>(shifted) << 23) + 0x3f800000u);
  return (p * r * r + r + 1.0f) * power;
}
inline double exp_of(double x) {
  return __builtin_exp(x);
}

}  // namespace
}  // namespace yoke
