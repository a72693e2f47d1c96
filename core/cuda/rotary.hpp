// Rotary position embedding on a device, in one pass over memory. The work of one thread is defined
// here and also runs on the CPU, where the tests compare it with the composition of ATen operators.
// rotary.cu launches the threads.
#pragma once

#include <cstdint>

#include "core/cuda/host_device.hpp"

namespace yoke {

// The arguments of the kernel. x and out are [rows, heads, 2 * half], cos and sin are [rows, half],
// all contiguous; x and out may be the same memory. A row is one token.
//
// Element i of the first half of a head and element i of the second half form a pair (a, b), which
// becomes (a cos - b sin, b cos + a sin).
template <class T>
struct Rotation {
  const T* x;
  const float* cos;
  const float* sin;
  T* out;
  int64_t rows, heads, half;
  float sign;  // factor of the angles: 1 forward, -1 backward

  YOKE_HOST_DEVICE int64_t pairs() const { return rows * heads * half; }

  // Rotates one pair. Pairs are numbered along half first, then heads, then rows, so that
  // neighbouring threads read neighbouring elements.
  YOKE_HOST_DEVICE void turn(int64_t pair) const {
    const int64_t head = pair / half, i = pair % half;
    const int64_t first = head * 2 * half + i, angle = head / heads * half + i;
    const float c = cos[angle], s = sign * sin[angle];
    const auto a = static_cast<float>(x[first]), b = static_cast<float>(x[first + half]);
    out[first] = static_cast<T>(a * c - b * s);
    out[first + half] = static_cast<T>(b * c + a * s);
  }
};

// Queues the rotation of all pairs on `stream`, a cudaStream_t. Does not throw: if the launch
// fails, the next use of the stream reports it. T is float, or uint16_t for the bits of bf16.
template <class T>
void rotate_on_device(const Rotation<T>& rotation, void* stream);

}  // namespace yoke
