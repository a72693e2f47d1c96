/* Conversions between fp16 (IEEE 754 binary16), stored as its 16 bits, and fp32. C99, C++ and CUDA
 * device code.
 *
 * Functions are pure, never fail, and may be called from any thread. They have no branches, so
 * compilers vectorise loops over them, also for processors without instructions for fp16. They are
 * exact and round correctly as long as the thread does not flush subnormal numbers to zero. */
#ifndef YOKE_HALF_H_
#define YOKE_HALF_H_

#include <stdint.h>
#include <string.h>

/* Marks a function that device code may call. Empty for compilers of plain C and C++. */
#ifndef YOKE_HOST_DEVICE
#if defined(__CUDACC__)
#define YOKE_HOST_DEVICE __host__ __device__
#else
#define YOKE_HOST_DEVICE
#endif
#endif

#ifdef __cplusplus
extern "C" {
#endif

/* Returns the value of an fp16 number. It is exact. A NaN stays a NaN. */
YOKE_HOST_DEVICE static inline float yoke_half_to_float(uint16_t half) {
  const uint32_t sign = (uint32_t)(half & 0x8000u) << 16;
  const uint32_t rest = (uint32_t)(half & 0x7fffu) << 13;
  uint32_t bits;
  float value;
  /* The exponents of fp16 have a bias that is smaller by 112. A multiplication adds it, and also
   * turns subnormal numbers into normal ones. */
  memcpy(&value, &rest, sizeof value);
  value *= 5192296858534827628530496329220096.0f; /* 2^112 */
  memcpy(&bits, &value, sizeof bits);
  bits = rest >= 0x0f800000u ? rest | 0x7f800000u : bits; /* infinity and NaN */
  bits |= sign;
  memcpy(&value, &bits, sizeof value);
  return value;
}

/* Returns the nearest fp16 number, ties to even. Values from 65520 on become infinity, and a NaN
 * becomes the quiet NaN 0x7e00 with its sign. */
YOKE_HOST_DEVICE static inline uint16_t yoke_float_to_half(float value) {
  uint32_t bits, rest, normal, small, half;
  float sum;
  memcpy(&bits, &value, sizeof bits);
  rest = bits & 0x7fffffffu;
  /* Adding just under half of the last kept bit, plus that bit itself, carries into it exactly when
   * the value must be rounded up. The bias of the exponent becomes smaller by 112. */
  normal = (rest + 0xfffu + (rest >> 13 & 1u) - 0x38000000u) >> 13;
  /* The last bit of a float from 0.5 to 1 is 2^-24, the unit of subnormal fp16 numbers. */
  memcpy(&sum, &rest, sizeof sum);
  sum += 0.5f;
  memcpy(&small, &sum, sizeof small);
  small -= 0x3f000000u;
  half = rest < 0x38800000u ? small : normal;  /* below 2^-14 */
  half = rest >= 0x477ff000u ? 0x7c00u : half; /* 65520 and more */
  half = rest > 0x7f800000u ? 0x7e00u : half;  /* NaN */
  return (uint16_t)(half | (bits >> 16 & 0x8000u));
}

#ifdef __cplusplus
}
#endif

#endif /* YOKE_HALF_H_ */
