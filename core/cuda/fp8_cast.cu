// The largest elements are found before the matrix is rounded, so it is read twice. Rows are
// reduced by one warp each. Columns and the whole matrix are reduced by blocks, which combine their
// results with atomic maxima; maxima do not depend on the order, so results are the same in every
// run.
#include <cuda_bf16.h>
#include <cuda_fp8.h>
#include <cuda_runtime.h>

#include <algorithm>

#include "core/cuda/fp8_cast.hpp"

namespace yoke::fp8_cast {
namespace {

constexpr int kWarp = 32;
constexpr int kWarps = kThreads / kWarp;
// Enough blocks to fill a large GPU. If there is more work, each thread does several parts of it.
constexpr int64_t kMostBlocks = 132 * 8;

using Pair = __nv_bfloat162;

__device__ uint32_t larger_size(Pair pair) {
  return max(size_bits(__low2float(pair)), size_bits(__high2float(pair)));
}

__global__ void __launch_bounds__(kThreads)
    amax_of_all(const Pair* x, int64_t pairs, uint32_t* amax) {
  uint32_t largest = 0;
  const int64_t step = int64_t{gridDim.x} * kThreads;
  for (int64_t i = int64_t{blockIdx.x} * kThreads + threadIdx.x; i < pairs; i += step)
    largest = max(largest, larger_size(x[i]));
  largest = __reduce_max_sync(0xffffffffu, largest);
  __shared__ uint32_t of_warps[kWarps];
  if (threadIdx.x % kWarp == 0) of_warps[threadIdx.x / kWarp] = largest;
  __syncthreads();
  if (threadIdx.x != 0) return;
  for (const uint32_t other : of_warps) largest = max(largest, other);
  atomicMax(amax, largest);
}

__global__ void __launch_bounds__(kThreads)
    amax_of_rows(const Pair* x, int64_t rows, int64_t pairs, uint32_t* amax) {
  for (int64_t row = int64_t{blockIdx.x} * kWarps + threadIdx.x / kWarp; row < rows;
       row += int64_t{gridDim.x} * kWarps) {
    uint32_t largest = 0;
    for (int64_t i = threadIdx.x % kWarp; i < pairs; i += kWarp)
      largest = max(largest, larger_size(x[row * pairs + i]));
    largest = __reduce_max_sync(0xffffffffu, largest);
    if (threadIdx.x % kWarp == 0) amax[row] = largest;
  }
}

constexpr int64_t kRowsOfBlock = 512;

// A block reduces kRowsOfBlock rows of as many pairs of columns as a warp has threads.
__global__ void __launch_bounds__(kThreads)
    amax_of_columns(const Pair* x, int64_t rows, int64_t pairs, uint32_t* amax) {
  const int lane = threadIdx.x % kWarp, warp = threadIdx.x / kWarp;
  const int64_t pair = int64_t{blockIdx.x} * kWarp + lane, first = blockIdx.y * kRowsOfBlock;
  uint32_t low = 0, high = 0;
  if (pair < pairs) {
    for (int64_t row = first + warp; row < min(rows, first + kRowsOfBlock); row += kWarps) {
      const Pair both = x[row * pairs + pair];
      low = max(low, size_bits(__low2float(both)));
      high = max(high, size_bits(__high2float(both)));
    }
  }
  __shared__ uint32_t of_warps[kWarps][2 * kWarp];
  of_warps[warp][2 * lane] = low;
  of_warps[warp][2 * lane + 1] = high;
  __syncthreads();
  const int64_t column = int64_t{blockIdx.x} * 2 * kWarp + threadIdx.x;
  if (threadIdx.x >= 2 * kWarp || column >= 2 * pairs) return;
  uint32_t largest = 0;
  for (const auto& sizes : of_warps) largest = max(largest, sizes[threadIdx.x]);
  atomicMax(amax + column, largest);
}

__global__ void __launch_bounds__(kThreads) scales_kernel(Scales scales) {
  const int64_t i = int64_t{blockIdx.x} * kThreads + threadIdx.x;
  if (i < scales.count) scales.put(i);
}

template <class Q>
__global__ void __launch_bounds__(kThreads) round_kernel(Matrix<__nv_bfloat16, Q> matrix) {
  __shared__ Tile<Q> tile;
  const int64_t across = matrix.tiles_across(), tiles = matrix.tiles_down() * across;
  for (int64_t i = blockIdx.x; i < tiles; i += gridDim.x) {
    matrix.load(i / across, i % across, static_cast<int>(threadIdx.x), tile);
    __syncthreads();
    matrix.store(i / across, i % across, static_cast<int>(threadIdx.x), tile);
    __syncthreads();
  }
}

unsigned blocks_for(int64_t parts) {
  return static_cast<unsigned>(std::min(parts, kMostBlocks));
}

template <class Q>
Target<Q> typed(const Target<uint8_t>& target) {
  return {reinterpret_cast<Q*>(target.numbers), target.scales, target.per_line, target.stride};
}

template <class Q>
void start(const Bf16Matrix& m,
           const Target<uint8_t>& as_is,
           const Target<uint8_t>& transposed,
           cudaStream_t stream) {
  const Matrix<__nv_bfloat16, Q> matrix{reinterpret_cast<const __nv_bfloat16*>(m.x),
                                        m.rows,
                                        m.columns,
                                        typed<Q>(as_is),
                                        typed<Q>(transposed)};
  const int64_t tiles = matrix.tiles_down() * matrix.tiles_across();
  if (tiles > 0) round_kernel<<<blocks_for(tiles), kThreads, 0, stream>>>(matrix);
}

}  // namespace

void find_amax(const Bf16Matrix& matrix, Lines lines, uint32_t* amax, void* stream) {
  const auto on = static_cast<cudaStream_t>(stream);
  const auto* x = reinterpret_cast<const Pair*>(matrix.x);
  const int64_t pairs = matrix.columns / 2;
  if (matrix.rows * pairs == 0) return;
  if (lines == Lines::kAll) {
    const int64_t parts = (matrix.rows * pairs + kThreads - 1) / kThreads;
    amax_of_all<<<blocks_for(parts), kThreads, 0, on>>>(x, matrix.rows * pairs, amax);
  } else if (lines == Lines::kRows) {
    const int64_t parts = (matrix.rows + kWarps - 1) / kWarps;
    amax_of_rows<<<blocks_for(parts), kThreads, 0, on>>>(x, matrix.rows, pairs, amax);
  } else {
    const dim3 blocks(static_cast<unsigned>((pairs + kWarp - 1) / kWarp),
                      static_cast<unsigned>((matrix.rows + kRowsOfBlock - 1) / kRowsOfBlock));
    amax_of_columns<<<blocks, kThreads, 0, on>>>(x, matrix.rows, pairs, amax);
  }
}

void put_scales(const Scales& scales, void* stream) {
  const auto blocks = static_cast<unsigned>((scales.count + kThreads - 1) / kThreads);
  if (blocks > 0) scales_kernel<<<blocks, kThreads, 0, static_cast<cudaStream_t>(stream)>>>(scales);
}

void round_matrix(const Bf16Matrix& matrix,
                  bool e5m2,
                  const Target<uint8_t>& as_is,
                  const Target<uint8_t>& transposed,
                  void* stream) {
  const auto on = static_cast<cudaStream_t>(stream);
  e5m2 ? start<__nv_fp8_e5m2>(matrix, as_is, transposed, on)
       : start<__nv_fp8_e4m3>(matrix, as_is, transposed, on);
}

}  // namespace yoke::fp8_cast
