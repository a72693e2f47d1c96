// Elements are spread over all threads of a grid. A row is processed by one block, so that its
// index needs no division, and with only as many threads as it has work for.
#include <cuda_runtime.h>
#include <torch/headeronly/util/BFloat16.h>
#include <torch/headeronly/util/Half.h>

#include <algorithm>

#include "core/cuda/kernels.hpp"

namespace yoke {
namespace {

constexpr int kWarp = 32;
constexpr int kThreads = 256;      // threads of a block that processes elements
constexpr int kMostThreads = 512;  // threads of a block that processes a row, at most
// Enough blocks to fill a large GPU. If there is more work, each block does several parts of it.
constexpr int64_t kMostBlocks = 132 * 16;

template <int n, class Operation>
__global__ void __launch_bounds__(kThreads) elements_kernel(Operation operation) {
  const int64_t step = int64_t{gridDim.x} * kThreads * n;
  for (int64_t i = (int64_t{blockIdx.x} * kThreads + threadIdx.x) * n; i < operation.count;
       i += step)
    operation.template run<n>(i);
}

template <int n, class Operation>
__global__ void __launch_bounds__(kMostThreads) rows_kernel(Operation operation) {
  for (int64_t row = blockIdx.x; row < operation.rows; row += gridDim.x)
    operation.template run<n>(row, static_cast<int>(threadIdx.x), static_cast<int>(blockDim.x));
}

template <class W>
__device__ LogSumExp<W> merged_in_warp(LogSumExp<W> sum) {
  for (int distance = kWarp / 2; distance > 0; distance /= 2) {
    LogSumExp<W> other;
    other.most = __shfl_down_sync(0xffffffffu, sum.most, distance);
    other.sum = __shfl_down_sync(0xffffffffu, sum.sum, distance);
    sum = sum.merged(other);
  }
  return sum;
}

template <int n, class Operation>
__global__ void __launch_bounds__(kMostThreads) reductions_kernel(Operation operation) {
  using Sum = decltype(operation.template part<n>(0, 0, 0));
  __shared__ alignas(Sum) char memory[sizeof(Sum) * kMostThreads / kWarp];
  auto* const of_warps = reinterpret_cast<Sum*>(memory);
  const int thread = static_cast<int>(threadIdx.x), threads = static_cast<int>(blockDim.x);
  const int lane = thread % kWarp, warps = threads / kWarp;
  for (int64_t row = blockIdx.x; row < operation.rows; row += gridDim.x) {
    const Sum sum = merged_in_warp(operation.template part<n>(row, thread, threads));
    if (lane == 0) of_warps[thread / kWarp] = sum;
    __syncthreads();
    if (thread < kWarp) {
      const Sum all = merged_in_warp(lane < warps ? of_warps[lane] : Sum());
      if (lane == 0) operation.finish(row, all);
    }
    __syncthreads();  // of_warps is free for the next row
  }
}

unsigned blocks_for(int64_t parts) {
  return static_cast<unsigned>(std::min(parts, kMostBlocks));
}

// Returns how many threads process a row of `work` parts: a multiple of a warp.
unsigned threads_for(int64_t work) {
  return static_cast<unsigned>(std::min<int64_t>((work + kWarp - 1) / kWarp * kWarp, kMostThreads));
}

template <int n, class Operation>
void launch_elements(const Operation& operation, cudaStream_t stream) {
  const int64_t blocks = (operation.count / n + kThreads - 1) / kThreads;
  if (blocks > 0) elements_kernel<n><<<blocks_for(blocks), kThreads, 0, stream>>>(operation);
}

template <int n, class Operation>
void launch_rows(const Operation& operation, cudaStream_t stream) {
  const unsigned threads = threads_for(operation.elements_of_row() / n);
  if (operation.rows > 0 && threads > 0)
    rows_kernel<n><<<blocks_for(operation.rows), threads, 0, stream>>>(operation);
}

template <int n, class Operation>
void launch_reductions(const Operation& operation, cudaStream_t stream) {
  const unsigned threads = threads_for(operation.elements_of_row() / n);
  if (operation.rows > 0 && threads > 0)
    reductions_kernel<n><<<blocks_for(operation.rows), threads, 0, stream>>>(operation);
}

}  // namespace

// Defines launch() of an operation, for elements in packs and one by one.
#define YOKE_LAUNCH(Operation, kind)                                 \
  template <class T>                                                 \
  void launch(const Operation<T>& operation, void* stream) {         \
    const auto on = static_cast<cudaStream_t>(stream);               \
    operation.takes_packs() ? launch_##kind<kPack<T>>(operation, on) \
                            : launch_##kind<1>(operation, on);       \
  }                                                                  \
  template void launch(const Operation<double>&, void*);             \
  template void launch(const Operation<float>&, void*);              \
  template void launch(const Operation<c10::Half>&, void*);          \
  template void launch(const Operation<c10::BFloat16>&, void*);

YOKE_LAUNCH(Swiglu, elements)
YOKE_LAUNCH(SwigluBackward, elements)
YOKE_LAUNCH(Rotation, rows)
YOKE_LAUNCH(CrossEntropy, reductions)
YOKE_LAUNCH(CrossEntropyBackward, rows)

}  // namespace yoke
