// Rotary embedding on a device, one pass over memory. What a thread does is here and runs on the
// CPU too, where the tests compare it with the composition; rotary.cu starts the threads.
#pragma once

#include <cstdint>

#ifdef __CUDACC__
#define YOKE_HOST_DEVICE __host__ __device__
#else
#define YOKE_HOST_DEVICE
#endif

namespace yoke {

// x and out [rows, heads, 2 * half], cos and sin [rows, half], all compact; x and out may be the
// same. Element i of the first half of a head pairs with element i of the second.
template <class T>
struct Rotation {
  const T* x;
  const float* cos;
  const float* sin;
  T* out;
  int64_t rows, heads, half;
  float sign;  // of the angles: 1 forward, -1 backward

  YOKE_HOST_DEVICE int64_t pairs() const { return rows * heads * half; }

  // `pair` counts through rows, heads and half.
  YOKE_HOST_DEVICE void turn(int64_t pair) const {
    const int64_t head = pair / half, i = pair % half;
    const int64_t first = head * 2 * half + i, angle = head / heads * half + i;
    const float c = cos[angle], s = sign * sin[angle];
    const auto a = static_cast<float>(x[first]), b = static_cast<float>(x[first + half]);
    out[first] = static_cast<T>(a * c - b * s);
    out[first + half] = static_cast<T>(b * c + a * s);
  }
};

// Queued on a cudaStream_t. Throws nothing: a launch that fails shows in the next use of the
// stream. T = float, or uint16_t for the bits of bf16.
template <class T>
void rotate_on_device(const Rotation<T>& rotation, void* stream);

}  // namespace yoke
