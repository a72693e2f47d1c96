// The matrix products of attention, in tiles whose scores stay in the cache, and the keys that the
// queries of a tile see. Included by cpu_attention.hpp only, which explains the algorithm.
// Everything has internal linkage; see cpu_vector_math.hpp.
#pragma once

#include "core/kernels/cpu_vector_math.hpp"

namespace yoke {
namespace {

#if defined(__AVX512F__)
constexpr int64_t kVectorBytes = 64;
#elif defined(__AVX2__)
constexpr int64_t kVectorBytes = 32;
#else
constexpr int64_t kVectorBytes = 16;
#endif

constexpr int64_t kRows = 8;  // rows that a product computes at once

// The matrix products, in the accumulation type W, for kQueryVectors vectors of queries.
template <class W, int64_t kQueryVectors>
struct Attention {
  typedef W Vec __attribute__((vector_size(kVectorBytes), aligned(sizeof(W)), may_alias));
  static constexpr int64_t kLanes = kVectorBytes / static_cast<int64_t>(sizeof(W));
  static constexpr int64_t kQueries = kQueryVectors * kLanes;

  // Returns n rounded up, so that n elements are full vectors and n rows are full groups of kRows.
  static int64_t padded(int64_t n) {
    const int64_t unit = kLanes > kRows ? kLanes : kRows;
    return (n + unit - 1) / unit * unit;
  }

  // The product C [kRows, columns] = A [kRows, inner] B [inner, columns]. The strides count
  // elements. A has two strides, so that it may be a transposed view; the rows of B and C are
  // contiguous. `columns` is a multiple of kLanes.
  struct Tile {
    int64_t inner, columns;
    const W* a;
    int64_t a_row, a_column = 1;  // distance between rows, and between columns
    const W* b;
    int64_t b_row;
    W* c;
    int64_t c_row;
  };

  // Computes kVectors vectors of columns, starting at column `at`. kAdd: adds to C. The
  // accumulators of all rows stay in registers during the loop over `inner`.
  template <int64_t kVectors, bool kAdd>
  static void columns(const Tile& t, int64_t at) {
    Vec sum[kRows][kVectors];
    for (int64_t r = 0; r < kRows; ++r) {
      for (int64_t v = 0; v < kVectors; ++v) {
        sum[r][v] =
            kAdd ? *reinterpret_cast<const Vec*>(t.c + r * t.c_row + at + v * kLanes) : Vec{};
      }
    }
    for (int64_t i = 0; i < t.inner; ++i) {
      Vec b[kVectors];
      for (int64_t v = 0; v < kVectors; ++v)
        b[v] = *reinterpret_cast<const Vec*>(t.b + i * t.b_row + at + v * kLanes);
      for (int64_t r = 0; r < kRows; ++r) {
        const W a = t.a[r * t.a_row + i * t.a_column];
        for (int64_t v = 0; v < kVectors; ++v) sum[r][v] += a * b[v];
      }
    }
    for (int64_t r = 0; r < kRows; ++r) {
      for (int64_t v = 0; v < kVectors; ++v)
        *reinterpret_cast<Vec*>(t.c + r * t.c_row + at + v * kLanes) = sum[r][v];
    }
  }

  // Computes the product, two vectors of columns at a time. kAdd: adds it to C.
  template <bool kAdd>
  static void tile(const Tile& t) {
    int64_t at = 0;
    for (; at + 2 * kLanes <= t.columns; at += 2 * kLanes) columns<2, kAdd>(t, at);
    for (; at < t.columns; at += kLanes) columns<1, kAdd>(t, at);
  }

  // Calls body(i) for i in [0, n), in groups of kRows calls that the compiler unrolls. A loop over
  // the few dimensions of a head would cost more than its content.
  template <class Body>
  static void unrolled(int64_t n, Body body) {
    int64_t at = 0;
    for (; at + kRows <= n; at += kRows) {
#pragma GCC unroll 8
      for (int64_t i = 0; i < kRows; ++i) body(at + i);
    }
    for (; at < n; ++at) body(at);
  }

  // Writes `factor` times src [rows, dim], whose rows are src_row elements apart, to dst [dst_rows,
  // width]. The rest of dst becomes 0, so that padding adds nothing to a product.
  template <class T>
  static void pack(const T* __restrict src,
                   int64_t rows,
                   int64_t dim,
                   int64_t src_row,
                   W factor,
                   W* __restrict dst,
                   int64_t dst_rows,
                   int64_t width) {
    for (int64_t r = 0; r < rows; ++r, src += src_row, dst += width) {
      unrolled(dim, [&](int64_t i) { dst[i] = wide(src[i]) * factor; });
      unrolled(width - dim, [&](int64_t i) { dst[dim + i] = 0; });
    }
    for (int64_t i = 0; i < (dst_rows - rows) * width; ++i) dst[i] = 0;
  }

  // Writes `factor` times the transpose of src [rows, dim], whose rows are src_row elements apart,
  // to dst [dim, kQueries]. The columns after `rows` become 0.
  template <class T>
  static void pack_transposed(const T* __restrict src,
                              int64_t rows,
                              int64_t dim,
                              int64_t src_row,
                              W factor,
                              W* __restrict dst) {
    for (int64_t r = 0; r < rows; ++r, src += src_row)
      unrolled(dim, [&](int64_t i) { dst[i * kQueries + r] = wide(src[i]) * factor; });
    for (int64_t r = rows; r < kQueries; ++r)
      unrolled(dim, [&](int64_t i) { dst[i * kQueries + r] = 0; });
  }

  // Writes the transpose of src [dim, kQueries] to dst [rows, dim], whose rows are dst_row elements
  // apart, with row r multiplied by factor_of(r).
  template <class Factor, class T>
  static void unpack_transposed(const W* __restrict src,
                                Factor factor_of,
                                int64_t rows,
                                int64_t dim,
                                T* __restrict dst,
                                int64_t dst_row) {
    for (int64_t r = 0; r < rows; ++r, dst += dst_row) {
      const W factor = factor_of(r);
      unrolled(dim, [&](int64_t i) { store(dst[i], src[i * kQueries + r] * factor); });
    }
  }

  // The sizes of one head and its scratch arrays, which share one allocation.
  struct Work {
    int64_t keys, dim, width;         // padded sequence length, head dim, padded head dim
    W *k, *v;                         // keys and values of the kv head [keys, width]
    W *dk, *dv;                       // their gradients [keys, width], summed over the query heads
    W *q, *dout;                      // rows of the current tile [kQueries, width]
    W *qt, *doutt, *outt;             // their transposes, and that of the output [width, kQueries]
    W *scores, *dscores;              // s, then p; and dp, then ds [keys, kQueries]
    const int64_t* starts = nullptr;  // AttentionData::starts of the current sequence, or NULL

    Work(const AttentionShape& s, W* scratch)
        : keys(padded(s.seq_len)), dim(s.head_dim), width(padded(s.head_dim)) {
      const auto take = [&](int64_t count) {
        W* at = scratch;
        scratch += count;
        return at;
      };
      W **of_keys[] = {&k, &v, &dk, &dv}, **of_tile[] = {&q, &dout, &qt, &doutt, &outt};
      for (W** array : of_keys) *array = take(keys * width);
      for (W** array : of_tile) *array = take(kQueries * width);
      scores = take(keys * kQueries);
      dscores = take(keys * kQueries);
    }
  };

  // Returns the number of elements that Work needs.
  static int64_t scratch(const AttentionShape& s) {
    const int64_t keys = padded(s.seq_len), width = padded(s.head_dim);
    return 4 * keys * width + 5 * kQueries * width + 2 * keys * kQueries;
  }

  // Keys [first, last).
  struct Keys {
    int64_t first, last;
    int64_t count() const { return last - first; }
  };
  // Returns the keys to which query `i` attends. Neither end decreases with i.
  static Keys keys_of(const AttentionShape& s, const Work& w, int64_t i) {
    const int64_t start = w.starts != nullptr ? w.starts[i] : 0, last = i + 1;
    return {s.window > 0 && last - s.window > start ? last - s.window : start, last};
  }

  // The queries [first, first + count), one per lane. The lanes after them see the keys of the last
  // query, and nothing uses what they compute.
  struct QueryTile {
    int64_t first, count;
    Keys keys;                         // all keys that a query sees, in full groups of kRows
    Keys common;                       // the keys that every query sees
    W begin[kQueries], end[kQueries];  // the keys that each lane sees, in the type of the scores

    // Without windows and documents, leaving out the keys after the last query halves the work.
    QueryTile(const AttentionShape& s, const Work& w, int64_t at)
        : first(at), count(s.seq_len - at < kQueries ? s.seq_len - at : kQueries) {
      const Keys low = keys_of(s, w, first), high = keys_of(s, w, first + count - 1);
      keys = {low.first / kRows * kRows, (high.last + kRows - 1) / kRows * kRows};
      common = {high.first, low.last > high.first ? low.last : high.first};
      for (int64_t l = 0; l < kQueries; ++l) {
        const Keys seen = l < count ? keys_of(s, w, first + l) : high;
        begin[l] = static_cast<W>(seen.first);
        end[l] = static_cast<W>(seen.last);
      }
    }
  };

  // Writes `value` to the scores [keys, kQueries] of the tile's keys that a query does not see.
  static void hide(const QueryTile& t, W* scores, W value) {
    hide(t, {t.keys.first, t.common.first}, scores, value);
    hide(t, {t.common.last, t.keys.last}, scores, value);
  }
  static void hide(const QueryTile& t, const Keys& keys, W* scores, W value) {
    for (int64_t j = keys.first; j < keys.last; ++j) {
      W* row = scores + j * kQueries;
      const W key = static_cast<W>(j);
#pragma omp simd
      for (int64_t l = 0; l < kQueries; ++l)
        row[l] = (key >= t.begin[l]) & (key < t.end[l]) ? row[l] : value;
    }
  }

  // scores_ji = <rows_j, queries_i> for the keys j of the tile. rows is [keys, width], `queries` is
  // the transpose of the tile's queries [D, kQueries], and scores is [keys, kQueries].
  static void product_with_queries(
      const Work& w, const QueryTile& t, const W* rows, const W* queries, W* scores) {
    for (int64_t j = t.keys.first; j < t.keys.last; j += kRows) {
      tile<false>({.inner = w.dim,
                   .columns = kQueries,
                   .a = rows + j * w.width,
                   .a_row = w.width,
                   .b = queries,
                   .b_row = kQueries,
                   .c = scores + j * kQueries,
                   .c_row = kQueries});
    }
  }

  // sums_i = sum_j scores_ji rows_j over the keys j of the tile, transposed: sums is [width,
  // kQueries].
  static void sum_over_keys(
      const Work& w, const QueryTile& t, const W* rows, const W* scores, W* sums) {
    for (int64_t i = 0; i < w.dim; i += kRows) {
      tile<false>({.inner = t.keys.count(),
                   .columns = kQueries,
                   .a = rows + t.keys.first * w.width + i,
                   .a_row = 1,
                   .a_column = w.width,
                   .b = scores + t.keys.first * kQueries,
                   .b_row = kQueries,
                   .c = sums + i * kQueries,
                   .c_row = kQueries});
    }
  }

  // sums_j += sum_i scores_ji queries_i for the keys j of the tile. `queries` is [count, width],
  // sums is [keys, width].
  static void add_sum_over_queries(
      const Work& w, const QueryTile& t, const W* scores, const W* queries, W* sums) {
    for (int64_t j = t.keys.first; j < t.keys.last; j += kRows) {
      tile<true>({.inner = t.count,
                  .columns = w.width,
                  .a = scores + j * kQueries,
                  .a_row = kQueries,
                  .b = queries,
                  .b_row = w.width,
                  .c = sums + j * w.width,
                  .c_row = w.width});
    }
  }
};

}  // namespace
}  // namespace yoke
