#include <cuda_bf16.h>
#include <cuda_runtime.h>

#include <algorithm>

#include "core/cuda/rotary.hpp"

namespace yoke {
namespace {

constexpr int kThreads = 256;
// Enough blocks to fill a large GPU. If there are more pairs, each thread processes several.
constexpr int64_t kMostBlocks = 132 * 16;

template <class T>
__global__ void __launch_bounds__(kThreads) rotary_kernel(Rotation<T> rotation) {
  const int64_t step = int64_t{gridDim.x} * kThreads;
  for (int64_t pair = int64_t{blockIdx.x} * kThreads + threadIdx.x; pair < rotation.pairs();
       pair += step)
    rotation.turn(pair);
}

template <class T>
void start(const Rotation<T>& rotation, void* stream) {
  const int64_t blocks = std::min((rotation.pairs() + kThreads - 1) / kThreads, kMostBlocks);
  if (blocks == 0) return;
  rotary_kernel<<<static_cast<unsigned>(blocks), kThreads, 0, static_cast<cudaStream_t>(stream)>>>(
      rotation);
}

}  // namespace

template <>
void rotate_on_device(const Rotation<float>& rotation, void* stream) {
  start(rotation, stream);
}

template <>
void rotate_on_device(const Rotation<uint16_t>& r, void* stream) {
  const auto* x = reinterpret_cast<const __nv_bfloat16*>(r.x);
  auto* out = reinterpret_cast<__nv_bfloat16*>(r.out);
  start(Rotation<__nv_bfloat16>{x, r.cos, r.sin, out, r.rows, r.heads, r.half, r.sign}, stream);
}

}  // namespace yoke
