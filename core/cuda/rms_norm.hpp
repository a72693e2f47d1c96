// RMSNorm on a device. With c = 1 / sqrt(mean(x^2) + eps) and w = weight:
//
//   forward    y = c x w
//   backward   dx = c (dy w - x c^2 mean(dy w x)) + the gradient of the residual
//              dw = sum of c x dy over the rows
//
// In a transformer x is also the residual, to which the output of the layer is added. That is why
// the backward adds the other gradient of x in the same pass. Each line of a small matrix has the
// sum of dw over some of the rows, and a second operation adds up the lines. The result does not
// depend on the order in which blocks run. See kernels.hpp.
#pragma once

#include <cmath>

#include "core/cuda/elements.hpp"

namespace yoke {

// Writes y and c of each row of x [rows, columns]. weight: [columns].
template <class T>
struct Norm {
  static constexpr Kind kKind = Kind::kPasses;
  static constexpr int kWidth = kPack<T>;

  const T* x;
  const T* weight;
  T* y;
  Wide<T>* scales;  // [rows]: c
  int64_t rows, columns;
  Wide<T> eps;

  bool takes_packs() const { return columns % kPack<T> == 0 && are_aligned({x, weight, y}); }
  int64_t elements_of_row() const { return columns; }
  int64_t blocks() const { return rows; }

  // Returns the share of one thread of the sum of squares of a row.
  template <int n>
  YOKE_HOST_DEVICE ThreadSum<Wide<T>> part(int64_t row, int thread, int threads) const {
    ThreadSum<Wide<T>> sum;
    for (int64_t i = int64_t{thread} * n; i < columns; i += int64_t{threads} * n) {
      const Pack<T, n> p = load<n>(x + row * columns + i);
      for (int k = 0; k < n; ++k) {
        const auto v = static_cast<Wide<T>>(p.v[k]);
        sum.value += v * v;
      }
    }
    return sum;
  }

  // Writes the share of one thread of a row. `sum` is that of all threads.
  template <int n>
  YOKE_HOST_DEVICE void finish(int64_t row,
                               const ThreadSum<Wide<T>>& sum,
                               int thread,
                               int threads) const {
    const Wide<T> c = 1 / std::sqrt(sum.value / static_cast<Wide<T>>(columns) + eps);
    if (thread == 0) scales[row] = c;
    for (int64_t i = int64_t{thread} * n; i < columns; i += int64_t{threads} * n) {
      Pack<T, n> p = load<n>(x + row * columns + i);
      const Pack<T, n> w = load<n>(weight + i);
      for (int k = 0; k < n; ++k)
        p.v[k] = static_cast<T>(static_cast<Wide<T>>(p.v[k]) * c * static_cast<Wide<T>>(w.v[k]));
      store(p, y + row * columns + i);
    }
  }
};

// Writes dx, and to line l of `lines` [line_count, columns] the sum of dw over the rows l, l +
// line_count, l + 2 line_count, ... One block processes all rows of a line, in this order, and
// line_count is at most the number of rows.
template <class T>
struct NormBackward {
  static constexpr Kind kKind = Kind::kPasses;
  static constexpr int kWidth = kPack<T>;

  const T* dy;
  const T* x;
  const T* weight;
  const Wide<T>* scales;
  const T* residual;  // gradient that is added to dx; NULL = none
  T* dx;
  Wide<T>* lines;
  int64_t rows, columns, line_count;

  bool takes_packs() const {
    return columns % kPack<T> == 0 && are_aligned({dy, x, weight, dx, residual, lines});
  }
  int64_t elements_of_row() const { return columns; }
  int64_t blocks() const { return line_count; }

  // Returns the share of one thread of the sum of dy w x over a row.
  template <int n>
  YOKE_HOST_DEVICE ThreadSum<Wide<T>> part(int64_t row, int thread, int threads) const {
    ThreadSum<Wide<T>> sum;
    for (int64_t i = int64_t{thread} * n; i < columns; i += int64_t{threads} * n) {
      const Pack<T, n> d = load<n>(dy + row * columns + i), v = load<n>(x + row * columns + i),
                       w = load<n>(weight + i);
      for (int k = 0; k < n; ++k)
        sum.value += static_cast<Wide<T>>(d.v[k]) * static_cast<Wide<T>>(w.v[k]) *
                     static_cast<Wide<T>>(v.v[k]);
    }
    return sum;
  }

  // Writes the share of one thread of a row. `sum` is that of all threads.
  template <int n>
  YOKE_HOST_DEVICE void finish(int64_t row,
                               const ThreadSum<Wide<T>>& sum,
                               int thread,
                               int threads) const {
    const Wide<T> c = scales[row], back = sum.value * c * c / static_cast<Wide<T>>(columns);
    Wide<T>* const line = lines + row % line_count * columns;
    const bool first = row < line_count;
    for (int64_t i = int64_t{thread} * n; i < columns; i += int64_t{threads} * n) {
      const Pack<T, n> d = load<n>(dy + row * columns + i), w = load<n>(weight + i);
      Pack<T, n> v = load<n>(x + row * columns + i), r{};
      if (residual != nullptr) r = load<n>(residual + row * columns + i);
      Pack<Wide<T>, n> l{};
      if (!first) l = load<n>(line + i);
      for (int k = 0; k < n; ++k) {
        const auto from = static_cast<Wide<T>>(d.v[k]), at = static_cast<Wide<T>>(v.v[k]);
        l.v[k] += from * (at * c);
        v.v[k] = static_cast<T>(c * (from * static_cast<Wide<T>>(w.v[k]) - at * back) +
                                static_cast<Wide<T>>(r.v[k]));
      }
      store(l, line + i);
      store(v, dx + row * columns + i);
    }
  }
};

// Sums of a few neighbouring columns.
template <class W>
struct ColumnSums {
  static constexpr int kColumns = 4;
  W v[kColumns] = {};
  YOKE_HOST_DEVICE ColumnSums merged(const ColumnSums& other) const {
    ColumnSums sum;
    for (int k = 0; k < kColumns; ++k) sum.v[k] = v[k] + other.v[k];
    return sum;
  }
};

// Adds up the lines of a matrix [line_count, columns] to out [columns], of type T or the wide type.
// There may be more lines than columns, so each block adds up a few columns only. accumulates: the
// sum is added to what `out` has.
template <class T, class Out>
struct SumOfLines {
  using Sums = ColumnSums<Wide<T>>;
  static constexpr Kind kKind = Kind::kReductions;
  static constexpr int kWidth = 1;

  const Wide<T>* lines;
  Out* out;
  int64_t columns, line_count;
  bool accumulates;
  int64_t rows = (columns + Sums::kColumns - 1) / Sums::kColumns;  // the number of blocks

  bool takes_packs() const { return true; }
  int64_t elements_of_row() const { return line_count; }

  // Returns the share of one thread of the sums of a block.
  template <int n>
  YOKE_HOST_DEVICE Sums part(int64_t block, int thread, int threads) const {
    const int64_t first = block * Sums::kColumns;
    Sums sum;
    for (int64_t i = thread; i < line_count; i += threads) {
      for (int k = 0; k < Sums::kColumns; ++k) {
        if (first + k < columns) sum.v[k] += lines[i * columns + first + k];
      }
    }
    return sum;
  }

  // Writes the sums of a block. `sum` is that of all threads.
  YOKE_HOST_DEVICE void finish(int64_t block, const Sums& sum) const {
    const int64_t first = block * Sums::kColumns;
    for (int64_t i = first; i < columns && i < first + Sums::kColumns; ++i) {
      const Wide<T> before = accumulates ? static_cast<Wide<T>>(out[i]) : 0;
      out[i] = static_cast<Out>(before + sum.v[i - first]);
    }
  }
};

}  // namespace yoke
