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

// The bits of bf16 numbers are the upper half of those of the same numbers in fp32, so sizes can be
// compared two at a time in the halves of a word.
constexpr int kWords = kAccessBytes / 4;
using Words = Pack<uint32_t, kWords>;

__device__ uint32_t larger_sizes(uint32_t sizes, uint32_t numbers) {
  return __vmaxu2(sizes, numbers & 0x7fff7fffu);
}
__device__ uint32_t larger_sizes(uint32_t sizes, const Words& numbers) {
  for (const uint32_t two : numbers.v) sizes = larger_sizes(sizes, two);
  return sizes;
}
// Return the size_bits() of the first and of the second of two sizes.
__device__ uint32_t first_size(uint32_t sizes) {
  return sizes << 16;
}
__device__ uint32_t second_size(uint32_t sizes) {
  return sizes & 0xffff0000u;
}
__device__ uint32_t larger_of(uint32_t sizes) {
  return max(first_size(sizes), second_size(sizes));
}

__global__ void __launch_bounds__(kThreads)
    amax_of_all(const Words* x, int64_t parts, uint32_t* amax) {
  uint32_t sizes = 0;
  const int64_t step = int64_t{gridDim.x} * kThreads;
  for (int64_t i = int64_t{blockIdx.x} * kThreads + threadIdx.x; i < parts; i += step)
    sizes = larger_sizes(sizes, x[i]);
  uint32_t largest = __reduce_max_sync(0xffffffffu, larger_of(sizes));
  __shared__ uint32_t of_warps[kWarps];
  if (threadIdx.x % kWarp == 0) of_warps[threadIdx.x / kWarp] = largest;
  __syncthreads();
  if (threadIdx.x != 0) return;
  for (const uint32_t other : of_warps) largest = max(largest, other);
  atomicMax(amax, largest);
}

__global__ void __launch_bounds__(kThreads)
    amax_of_rows(const Words* x, int64_t rows, int64_t parts, uint32_t* amax) {
  for (int64_t row = int64_t{blockIdx.x} * kWarps + threadIdx.x / kWarp; row < rows;
       row += int64_t{gridDim.x} * kWarps) {
    uint32_t sizes = 0;
    for (int64_t i = threadIdx.x % kWarp; i < parts; i += kWarp)
      sizes = larger_sizes(sizes, x[row * parts + i]);
    const uint32_t largest = __reduce_max_sync(0xffffffffu, larger_of(sizes));
    if (threadIdx.x % kWarp == 0) amax[row] = largest;
  }
}

constexpr int64_t kRowsOfBlock = 256;

// A block reduces kRowsOfBlock rows of the columns that the threads of a warp read at once.
__global__ void __launch_bounds__(kThreads)
    amax_of_columns(const Words* x, int64_t rows, int64_t parts, uint32_t* amax) {
  const int lane = threadIdx.x % kWarp, warp = threadIdx.x / kWarp;
  const int64_t part = int64_t{blockIdx.x} * kWarp + lane, first = blockIdx.y * kRowsOfBlock;
  Words sizes{};
  if (part < parts) {
    for (int64_t row = first + warp; row < min(rows, first + kRowsOfBlock); row += kWarps) {
      const Words numbers = x[row * parts + part];
      for (int i = 0; i < kWords; ++i) sizes.v[i] = larger_sizes(sizes.v[i], numbers.v[i]);
    }
  }
  __shared__ Words of_warps[kWarps][kWarp];
  of_warps[warp][lane] = sizes;
  __syncthreads();
  if (warp != 0 || part >= parts) return;
  for (const auto& others : of_warps) {
    for (int i = 0; i < kWords; ++i) sizes.v[i] = larger_sizes(sizes.v[i], others[lane].v[i]);
  }
  for (int i = 0; i < kWords; ++i) {
    uint32_t* const columns = amax + (part * kWords + i) * 2;
    atomicMax(columns, first_size(sizes.v[i]));
    atomicMax(columns + 1, second_size(sizes.v[i]));
  }
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
  const auto* x = reinterpret_cast<const Words*>(matrix.x);
  const int64_t parts = matrix.columns / (2 * kWords);  // parts of a row
  if (matrix.rows * parts == 0) return;
  if (lines == Lines::kAll) {
    const int64_t blocks = (matrix.rows * parts + kThreads - 1) / kThreads;
    amax_of_all<<<blocks_for(blocks), kThreads, 0, on>>>(x, matrix.rows * parts, amax);
  } else if (lines == Lines::kRows) {
    const int64_t blocks = (matrix.rows + kWarps - 1) / kWarps;
    amax_of_rows<<<blocks_for(blocks), kThreads, 0, on>>>(x, matrix.rows, parts, amax);
  } else {
    const dim3 blocks(static_cast<unsigned>((parts + kWarp - 1) / kWarp),
                      static_cast<unsigned>((matrix.rows + kRowsOfBlock - 1) / kRowsOfBlock));
    amax_of_columns<<<blocks, kThreads, 0, on>>>(x, matrix.rows, parts, amax);
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
