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
__device__ LogSumExp<W> from_lane(const LogSumExp<W>& sum, int distance) {
  LogSumExp<W> other;
  other.most = __shfl_down_sync(0xffffffffu, sum.most, distance);
  other.sum = __shfl_down_sync(0xffffffffu, sum.sum, distance);
  return other;
}
template <class W>
__device__ ThreadSum<W> from_lane(const ThreadSum<W>& sum, int distance) {
  return {__shfl_down_sync(0xffffffffu, sum.value, distance)};
}

template <class W>
__device__ ColumnSums<W> from_lane(const ColumnSums<W>& sum, int distance) {
  ColumnSums<W> other;
  for (int k = 0; k < sum.kColumns; ++k)
    other.v[k] = __shfl_down_sync(0xffffffffu, sum.v[k], distance);
  return other;
}

// Returns in lane 0 what all lanes of the warp have.
template <class Sum>
__device__ Sum merged_in_warp(Sum sum) {
  for (int distance = kWarp / 2; distance > 0; distance /= 2)
    sum = sum.merged(from_lane(sum, distance));
  return sum;
}

// Shared memory for the sums of the warps of a block.
template <class Sum>
struct SumsOfWarps {
  alignas(Sum) char memory[sizeof(Sum) * kMostThreads / kWarp];
  __device__ Sum& operator[](int warp) { return reinterpret_cast<Sum*>(memory)[warp]; }

  // Returns in lane 0 of the first warp what all threads of the block have. All threads call it.
  __device__ Sum merge(const Sum& of_thread) {
    const int thread = static_cast<int>(threadIdx.x), lane = thread % kWarp;
    const int warps = static_cast<int>(blockDim.x) / kWarp;
    const Sum of_warp = merged_in_warp(of_thread);
    if (lane == 0) (*this)[thread / kWarp] = of_warp;
    __syncthreads();
    return thread < kWarp ? merged_in_warp(lane < warps ? (*this)[lane] : Sum()) : Sum();
  }
};

template <int n, class Operation>
__global__ void __launch_bounds__(kMostThreads) reductions_kernel(Operation operation) {
  using Sum = decltype(operation.template part<n>(0, 0, 0));
  __shared__ SumsOfWarps<Sum> sums;
  const int thread = static_cast<int>(threadIdx.x), threads = static_cast<int>(blockDim.x);
  for (int64_t row = blockIdx.x; row < operation.rows; row += gridDim.x) {
    const Sum all = sums.merge(operation.template part<n>(row, thread, threads));
    if (thread == 0) operation.finish(row, all);
    __syncthreads();  // sums is free for the next row
  }
}

template <int n, class Operation>
__global__ void __launch_bounds__(kMostThreads) passes_kernel(Operation operation) {
  using Sum = decltype(operation.template part<n>(0, 0, 0));
  __shared__ SumsOfWarps<Sum> sums;
  const int thread = static_cast<int>(threadIdx.x), threads = static_cast<int>(blockDim.x);
  for (int64_t row = blockIdx.x; row < operation.rows; row += gridDim.x) {
    const Sum all = sums.merge(operation.template part<n>(row, thread, threads));
    __syncthreads();  // the first warp has read the sums of all warps
    if (thread == 0) sums[0] = all;
    __syncthreads();
    operation.template finish<n>(row, sums[0], thread, threads);
    __syncthreads();  // sums is free for the next row
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
  const unsigned threads = threads_for((operation.elements_of_row() + n - 1) / n);
  if (operation.rows > 0 && threads > 0)
    rows_kernel<n><<<blocks_for(operation.rows), threads, 0, stream>>>(operation);
}

template <int n, class Operation>
void launch_reductions(const Operation& operation, cudaStream_t stream) {
  const unsigned threads = threads_for((operation.elements_of_row() + n - 1) / n);
  if (operation.rows > 0 && threads > 0)
    reductions_kernel<n><<<blocks_for(operation.rows), threads, 0, stream>>>(operation);
}

template <int n, class Operation>
void launch_passes(const Operation& operation, cudaStream_t stream) {
  const unsigned threads = threads_for((operation.elements_of_row() + n - 1) / n);
  const int64_t blocks = operation.blocks();
  if (operation.rows > 0 && threads > 0)
    passes_kernel<n><<<static_cast<unsigned>(blocks), threads, 0, stream>>>(operation);
}

template <int n, class Operation>
void launch_kind(const Operation& operation, cudaStream_t stream) {
  if constexpr (Operation::kKind == Kind::kElements) launch_elements<n>(operation, stream);
  if constexpr (Operation::kKind == Kind::kRows) launch_rows<n>(operation, stream);
  if constexpr (Operation::kKind == Kind::kReductions) launch_reductions<n>(operation, stream);
  if constexpr (Operation::kKind == Kind::kPasses) launch_passes<n>(operation, stream);
}

}  // namespace

template <class Operation>
void launch(const Operation& operation, void* stream) {
  const auto on = static_cast<cudaStream_t>(stream);
  operation.takes_packs() ? launch_kind<Operation::kWidth>(operation, on)
                          : launch_kind<1>(operation, on);
}

#define YOKE_LAUNCH(Operation)                              \
  template void launch(const Operation<double>&, void*);    \
  template void launch(const Operation<float>&, void*);     \
  template void launch(const Operation<c10::Half>&, void*); \
  template void launch(const Operation<c10::BFloat16>&, void*);

YOKE_LAUNCH(Swiglu)
YOKE_LAUNCH(SwigluBackward)
YOKE_LAUNCH(Rotation)
YOKE_LAUNCH(CrossEntropy)
YOKE_LAUNCH(CrossEntropyBackward)
YOKE_LAUNCH(Norm)
YOKE_LAUNCH(NormBackward)

template void launch(const SumOfLines<double, double>&, void*);
template void launch(const SumOfLines<float, float>&, void*);
template void launch(const SumOfLines<c10::Half, c10::Half>&, void*);
template void launch(const SumOfLines<c10::Half, float>&, void*);
template void launch(const SumOfLines<c10::BFloat16, c10::BFloat16>&, void*);
template void launch(const SumOfLines<c10::BFloat16, float>&, void*);

template void launch(const StateHash<uint8_t>&, void*);
template void launch(const StateHash<uint16_t>&, void*);
template void launch(const StateHash<uint32_t>&, void*);
template void launch(const StateHash<uint64_t>&, void*);

template void launch(const AdamWUpdate<double, double, double>&, void*);
template void launch(const AdamWUpdate<float, float, float>&, void*);
template void launch(const AdamWUpdate<float, float, c10::Half>&, void*);
template void launch(const AdamWUpdate<float, float, c10::BFloat16>&, void*);
template void launch(const AdamWUpdate<float, c10::Half, c10::Half>&, void*);
template void launch(const AdamWUpdate<float, c10::BFloat16, c10::BFloat16>&, void*);

}  // namespace yoke
