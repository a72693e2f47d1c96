// The matrix products of attention, in tiles whose scores stay in the cache, and which keys a tile
// needs. Included by cpu_attention.hpp only, which explains the algorithm. Everything has internal
// linkage; see cpu_vector_math.hpp.
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

constexpr int64_t kRows = 8;  // queries per tile

// The matrix products, in the accumulation type W.
template <class W>
struct Attention {
  typedef W Vec __attribute__((vector_size(kVectorBytes), aligned(sizeof(W)), may_alias));
  static constexpr int64_t kLanes = kVectorBytes / static_cast<int64_t>(sizeof(W));

  // Returns n rounded up, so that n elements are full vectors and n rows are full tiles.
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

  // Writes `factor` times src [rows, dim], whose rows are src_row elements apart, to dst [dst_rows,
  // width]. The rest of dst becomes 0, so that padding adds nothing to a product.
  template <class T>
  static void pack(const T* src,
                   int64_t rows,
                   int64_t dim,
                   int64_t src_row,
                   W factor,
                   W* dst,
                   int64_t dst_rows,
                   int64_t width) {
    for (int64_t r = 0; r < dst_rows; ++r, dst += width) {
      const int64_t filled = r < rows ? dim : 0;
      for (int64_t i = 0; i < filled; ++i) dst[i] = wide(src[r * src_row + i]) * factor;
      for (int64_t i = filled; i < width; ++i) dst[i] = 0;
    }
  }

  // Writes the transpose of src [rows, dim], whose rows are src_row elements apart, to dst [dim,
  // width].
  static void transpose(
      const W* src, int64_t rows, int64_t dim, int64_t src_row, W* dst, int64_t width) {
    for (int64_t i = 0; i < dim; ++i) {
      for (int64_t r = 0; r < rows; ++r) dst[i * width + r] = src[r * src_row + i];
    }
  }

  // The sizes of one head and its scratch arrays, which share one allocation.
  struct Work {
    int64_t keys, width;              // padded sequence length, padded head dim
    W *k, *v;                         // keys and values of the kv head [keys, width]
    W *kt, *vt;                       // their transposes [D, keys]
    W *dk, *dv;                       // their gradients [keys, width], summed over the query heads
    W *q, *dout, *out;                // rows of the current tile [kRows, width]
    W *scores, *dscores;              // s, then p; and dp, then ds [kRows, keys]
    const int64_t* starts = nullptr;  // AttentionData::starts of the current sequence, or NULL

    Work(const AttentionShape& s, W* scratch) : keys(padded(s.seq_len)), width(padded(s.head_dim)) {
      const auto take = [&](int64_t count) {
        W* at = scratch;
        scratch += count;
        return at;
      };
      k = take(keys * width);
      v = take(keys * width);
      kt = take(s.head_dim * keys);
      vt = take(s.head_dim * keys);
      dk = take(keys * width);
      dv = take(keys * width);
      q = take(kRows * width);
      dout = take(kRows * width);
      out = take(kRows * width);
      scores = take(kRows * keys);
      dscores = take(kRows * keys);
    }
  };

  // Returns the number of elements that Work needs.
  static int64_t scratch(const AttentionShape& s) {
    const int64_t keys = padded(s.seq_len), width = padded(s.head_dim);
    return 4 * keys * width + 2 * s.head_dim * keys + 3 * kRows * width + 2 * kRows * keys;
  }

  // Keys [first, last).
  struct Keys {
    int64_t first, last;
    int64_t count() const { return last - first; }
  };
  // Returns the keys to which row `i` attends. Rows after the sequence attend to none.
  static Keys keys_of(const AttentionShape& s, const Work& w, int64_t i) {
    if (i >= s.seq_len) return {0, 0};
    const int64_t start = w.starts != nullptr ? w.starts[i] : 0, last = i + 1;
    return {s.window > 0 && last - s.window > start ? last - s.window : start, last};
  }
  // Returns the keys to which the rows of the tile that starts at row `first` attend, and some
  // more, so that they are full vectors and begin with a full tile. With neither window nor
  // documents, the keys after the last row, which are left out, are half of the work.
  static Keys keys_of_tile(const AttentionShape& s, const Work& w, int64_t first) {
    const int64_t unit = padded(1), begin = keys_of(s, w, first).first / unit * unit;
    const int64_t end = first + kRows < s.seq_len ? first + kRows : s.seq_len;
    return {begin, (end + kLanes - 1) / kLanes * kLanes};
  }

  // Describes the product of rows a of a tile with some of the transposed keys or values `bt`. Its
  // result is in the columns of c that have the numbers of these keys.
  static Tile with_keys(
      const AttentionShape& s, const Work& w, const W* a, const W* bt, W* c, const Keys& keys) {
    return {.inner = s.head_dim,
            .columns = keys.count(),
            .a = a,
            .a_row = w.width,
            .b = bt + keys.first,
            .b_row = w.keys,
            .c = c + keys.first,
            .c_row = w.keys};
  }
};

}  // namespace
}  // namespace yoke
