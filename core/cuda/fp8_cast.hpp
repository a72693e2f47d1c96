// Rounding of a bf16 matrix to fp8 on a device: the numbers, the transposed numbers, or both in one
// pass over memory. A product on a device sums along the rows of both operands, so gradients need
// transposed operands.
//
// The work of one thread is defined here and also runs on the CPU, where the tests compare it with
// core/kernels/fp8.hpp, bit for bit. fp8_cast.cu launches the threads.
#pragma once

#include <cstdint>
#include <cstring>

#include "core/cuda/elements.hpp"

namespace yoke::fp8_cast {

// The bits of |x|. As unsigned integers they are ordered like the numbers, and those of NaN are
// larger than those of infinity, so that a maximum of them is NaN if any of the numbers is.
YOKE_HOST_DEVICE inline uint32_t size_bits(float x) {
  uint32_t bits;
  memcpy(&bits, &x, sizeof bits);
  return bits & 0x7fffffffu;
}

YOKE_HOST_DEVICE inline float from_bits(uint32_t bits) {
  float x;
  memcpy(&x, &bits, sizeof x);
  return x;
}

// Returns what fp8::scale_of() returns for the number with these size_bits(). limit: the largest
// number of the format.
YOKE_HOST_DEVICE inline float scale_of(uint32_t amax, float limit) {
  const float size = from_bits(amax);
  if (size != size) return size;
  const double at_least = size < 1e-12 ? 1e-12 : static_cast<double>(size);
  const auto exact = static_cast<float>(1 / at_least * limit);
  return from_bits(size_bits(exact) & 0x7f800000u);  // the largest power of two up to it, or 0
}

// Turns the largest sizes into scales.
struct Scales {
  const uint32_t* amax;  // size_bits() of the largest element, of the matrix or of each line
  float* scale;
  float* unscale;  // 1 / scale
  int64_t count;
  float limit;  // largest number of the format

  YOKE_HOST_DEVICE void put(int64_t i) const {
    scale[i] = scale_of(amax[i], limit);
    unscale[i] = 1 / scale[i];
  }
};

// Where rounded numbers go. A line is a row of the matrix for Matrix::as_is, and a column for
// Matrix::transposed. Q is an fp8 type that can be constructed from float. No number is beyond its
// range, because the scale follows from the largest one.
template <class Q>
struct Target {
  Q* numbers = nullptr;           // [lines, stride]; NULL = not wanted
  const float* scales = nullptr;  // scale of each line, or of all
  bool per_line = false;          // whether each line has a scale
  int64_t stride = 0;             // elements of a line; of a column, the number of rows or more

  YOKE_HOST_DEVICE float scale(int64_t line) const { return scales[per_line ? line : 0]; }
};

constexpr int kSide = 64;      // rows and columns of a tile
constexpr int kThreads = 256;  // threads that process a tile

template <class T>
using Four = Pack<T, 4>;

// The numbers of a tile for the transposed matrix: column by column. The columns are padded, so
// that neighbouring ones lie in different banks of shared memory.
template <class Q>
struct Tile {
  Four<Q> columns[kSide][kSide / 4 + 1];
};

// The arguments of the kernel. x is [rows, columns], contiguous; columns and transposed.stride are
// multiples of 4. If both targets are wanted, they have the same format.
template <class T, class Q>
struct Matrix {
  const T* x;
  int64_t rows, columns;
  Target<Q> as_is, transposed;

  YOKE_HOST_DEVICE int64_t tiles_down() const { return (rows + kSide - 1) / kSide; }
  YOKE_HOST_DEVICE int64_t tiles_across() const { return (columns + kSide - 1) / kSide; }

  // First phase of a tile: rounds a block of 4 x 4 elements, writes its rows to as_is and its
  // columns to `tile`. down, across: number of the tile. Rows beyond the last are zeros.
  YOKE_HOST_DEVICE void load(int64_t down, int64_t across, int thread, Tile<Q>& tile) const {
    const int block_row = thread / (kSide / 4), block_column = thread % (kSide / 4);
    const int64_t first = down * kSide + block_row * 4, column = across * kSide + block_column * 4;
    if (column >= columns) return;
    Four<T> in[4];
    for (int r = 0; r < 4; ++r) in[r] = read(first + r, column);
    if (as_is.numbers != nullptr) write_rows(first, column, in);
    if (transposed.numbers == nullptr) return;
    for (int i = 0; i < 4; ++i) {
      const float scale = transposed.scale(column + i);
      Four<Q>& out = tile.columns[block_column * 4 + i][block_row];
      for (int r = 0; r < 4; ++r) {
        const Q zero(0.0f);
        out.v[r] = first + r < rows ? Q(static_cast<float>(in[r].v[i]) * scale) : zero;
      }
    }
  }

  // Second phase, after all threads have finished the first: writes a part of `tile` to transposed.
  YOKE_HOST_DEVICE void store(int64_t down, int64_t across, int thread, const Tile<Q>& tile) const {
    const int part = thread % (kSide / 4);  // neighbouring threads write neighbouring elements
    const int64_t row = down * kSide + part * 4;
    if (transposed.numbers == nullptr || row >= transposed.stride) return;
    for (int i = thread / (kSide / 4); i < kSide; i += kThreads / (kSide / 4)) {
      const int64_t column = across * kSide + i;
      if (column >= columns) return;
      Q* const out = transposed.numbers + column * transposed.stride + row;
      *reinterpret_cast<Four<Q>*>(out) = tile.columns[i][part];
    }
  }

 private:
  // Returns four elements of a row. Those of a row beyond the last are arbitrary.
  YOKE_HOST_DEVICE Four<T> read(int64_t row, int64_t column) const {
    const int64_t within = row < rows ? row : 0;
    return *reinterpret_cast<const Four<T>*>(x + within * columns + column);
  }

  YOKE_HOST_DEVICE void write_rows(int64_t first, int64_t column, const Four<T> (&in)[4]) const {
    for (int r = 0; r < 4 && first + r < rows; ++r) {
      const float scale = as_is.scale(first + r);
      Four<Q> out;
      for (int i = 0; i < 4; ++i) out.v[i] = Q(static_cast<float>(in[r].v[i]) * scale);
      *reinterpret_cast<Four<Q>*>(as_is.numbers + (first + r) * as_is.stride + column) = out;
    }
  }
};

// A contiguous matrix [rows, columns] in bf16, given by its bits. Its address is a multiple of 16
// bytes, and columns is a multiple of 16.
struct Bf16Matrix {
  const uint16_t* x;
  int64_t rows, columns;
};
enum class Lines : uint8_t { kAll, kRows, kColumns };

// These queue work on `stream`, a cudaStream_t. They do not throw: if a launch fails, the next use
// of the stream reports it.

// Writes the largest size_bits() of the matrix, of each row or of each column to `amax`, which is
// zero before.
void find_amax(const Bf16Matrix& matrix, Lines lines, uint32_t* amax, void* stream);
void put_scales(const Scales& scales, void* stream);
// Rounds the matrix to e4m3 or e5m2, whose bits the targets receive.
void round_matrix(const Bf16Matrix& matrix,
                  bool e5m2,
                  const Target<uint8_t>& as_is,
                  const Target<uint8_t>& transposed,
                  void* stream);

}  // namespace yoke::fp8_cast
