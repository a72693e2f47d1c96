// Causal attention on contiguous tensors, for sequences whose keys fit in the cache. Included by
// cpu_kernels_impl.cpp only. Everything has internal linkage; see cpu_vector_math.hpp.
//
// For one head, with scale = 1 / sqrt(D) and rows i, j of the sequence, i - window < j <= i:
//
//   forward    s_ij = scale <q_i, k_j>      lse_i = log sum_j exp(s_ij)
//              p_ij = exp(s_ij - lse_i)     out_i = sum_j p_ij v_j
//   backward   dp_ij = <dout_i, v_j>        ds_ij = p_ij (dp_ij - <dout_i, out_i>)
//              dv_j = sum_i p_ij dout_i     dk_j = scale sum_i ds_ij q_i
//              dq_i = scale sum_j ds_ij k_j
//
// The backward does not store p: it computes the scores again and needs only lse, one number per
// row. <dout_i, out_i> equals sum_j p_ij dp_ij, so the softmax needs no second pass over j.
//
// Every sum above is a product of small matrices, computed by tile(). Keys and values of one kv
// head are packed once into padded copies in the accumulation type, and are then used for all query
// heads that share it. Queries are taken kRows at a time. The scores of a tile, kRows rows with one
// score per key, stay in the cache; a full S x S matrix never exists. If the keys do not fit in the
// cache, an algorithm that also splits them (flash attention) is faster; see kLongestAttention.
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
    int64_t keys, width;  // padded sequence length, padded head dim
    W *k, *v;             // keys and values of the kv head [keys, width]
    W *kt, *vt;           // their transposes [D, keys]
    W *dk, *dv;           // their gradients [keys, width], summed over the query heads
    W *q, *dout, *out;    // rows of the current tile [kRows, width]
    W *scores, *dscores;  // s, then p; and dp, then ds [kRows, keys]

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

  // Describes the product of the tile that starts at row `first` with the transposed keys or values
  // `bt`. It skips the keys after the last row of the tile, which are half of the work.
  static Tile with_keys(
      const AttentionShape& s, const Work& w, const W* a, const W* bt, W* c, int64_t first) {
    const int64_t seen = first + kRows < s.seq_len ? first + kRows : s.seq_len;
    return {.inner = s.head_dim,
            .columns = (seen + kLanes - 1) / kLanes * kLanes,
            .a = a,
            .a_row = w.width,
            .b = bt,
            .b_row = w.keys,
            .c = c,
            .c_row = w.keys};
  }
};

// The passes over the heads, for tensors of type T.
template <class T>
struct CausalAttention : Attention<Wide<T>> {
  using W = Wide<T>;
  using Base = Attention<W>;
  using typename Base::Tile;
  using typename Base::Work;

  // Returns the number of queries in the tile that starts at row `first`.
  static int64_t rows_of(const AttentionShape& s, int64_t first) {
    return s.seq_len - first < kRows ? s.seq_len - first : kRows;
  }
  // The keys to which row `i` attends: [first, last). Rows after the sequence attend to none.
  struct Keys {
    int64_t first, last;
  };
  static Keys keys_of(const AttentionShape& s, int64_t i) {
    const int64_t last = i < s.seq_len ? i + 1 : 0;
    return {s.window > 0 && last > s.window ? last - s.window : 0, last};
  }
  static void fill_hidden(W* row, const Keys& seen, int64_t columns, W value) {
    for (int64_t j = 0; j < seen.first; ++j) row[j] = value;
    for (int64_t j = seen.last; j < columns; ++j) row[j] = value;
  }
  static W scale_of(const AttentionShape& s) { return 1 / root(static_cast<W>(s.head_dim)); }

  // Replaces the scores of a tile by exp(s_ij - max_j s_ij), and by 0 where row i must not attend
  // to key j. Writes the row sums and lse. The caller divides by the sums after the product with v:
  // D divisions per row instead of one for each key. Without the maximum, exp could overflow.
  static void unnormalised_softmax(
      const AttentionShape& s, const Work& w, int64_t first, int64_t columns, W* sums, W* lse) {
    for (int64_t r = 0; r < kRows; ++r) {
      W* row = w.scores + r * w.keys;
      const Keys seen = keys_of(s, first + r);
      // Keeps these columns out of the maximum. They become 0 below, after the exponentials.
      fill_hidden(row, seen, columns, -3e38f);
      W top = row[0];
#pragma omp simd reduction(max : top)
      for (int64_t j = 0; j < columns; ++j) top = top > row[j] ? top : row[j];
      W sum = 0;
#pragma omp simd
      for (int64_t j = 0; j < columns; ++j) row[j] = exp_of(row[j] - top);
      fill_hidden(row, seen, columns, 0);
#pragma omp simd reduction(+ : sum)
      for (int64_t j = 0; j < columns; ++j) sum += row[j];
      sums[r] = sum;
      if (seen.last > 0) lse[first + r] = top + log_of(sum);
    }
  }

  // Computes one query head. q and out are [S, token stride], lse is [S].
  static void forward_head(const AttentionShape& s, const Work& w, const T* q, T* out, W* lse) {
    const int64_t token = s.heads * s.head_dim;
    for (int64_t first = 0; first < s.seq_len; first += kRows) {
      const int64_t rows = rows_of(s, first);
      Base::pack(q + first * token, rows, s.head_dim, token, scale_of(s), w.q, kRows, w.width);
      const Tile scores = Base::with_keys(s, w, w.q, w.kt, w.scores, first);
      Base::template tile<false>(scores);
      W sums[kRows];
      unnormalised_softmax(s, w, first, scores.columns, sums, lse);
      Base::template tile<false>({.inner = scores.columns,
                                  .columns = w.width,
                                  .a = w.scores,
                                  .a_row = w.keys,
                                  .b = w.v,
                                  .b_row = w.width,
                                  .c = w.out,
                                  .c_row = w.width});
      for (int64_t r = 0; r < rows; ++r) {
        for (int64_t i = 0; i < s.head_dim; ++i)
          store(out[(first + r) * token + i], w.out[r * w.width + i] / sums[r]);
      }
    }
  }

  // Packs keys and values of one kv head, and transposes the keys. The transpose makes the inner
  // loop of the scores run over neighbouring keys.
  static void pack_keys(const AttentionShape& s, const Work& w, const T* k, const T* v) {
    const int64_t token = s.kv_heads * s.head_dim;
    Base::pack(k, s.seq_len, s.head_dim, token, 1, w.k, w.keys, w.width);
    Base::pack(v, s.seq_len, s.head_dim, token, 1, w.v, w.keys, w.width);
    Base::transpose(w.k, w.keys, s.head_dim, w.width, w.kt, w.keys);
  }

  // The pairs (sequence, kv head) are numbered from 0. kv_at() returns where a pair starts in k and
  // v. head_at() returns where query head h of the pair starts in q and out, and lse_at() where it
  // starts in lse.
  static int64_t kv_at(const AttentionShape& s, int64_t pair) {
    return (pair / s.kv_heads * s.seq_len * s.kv_heads + pair % s.kv_heads) * s.head_dim;
  }
  static int64_t head_at(const AttentionShape& s, int64_t pair, int64_t h) {
    return (pair / s.kv_heads * s.seq_len * s.heads + h) * s.head_dim;
  }
  static int64_t lse_at(const AttentionShape& s, int64_t pair, int64_t h) {
    return (pair / s.kv_heads * s.heads + h) * s.seq_len;
  }

  // See CpuKernels::attention_forward.
  static void forward(
      const AttentionShape& s, int64_t begin, int64_t end, const AttentionData<T>& d, W* scratch) {
    const Work w(s, scratch);
    const int64_t group = s.heads / s.kv_heads;
    for (int64_t pair = begin; pair < end; ++pair) {
      pack_keys(s, w, d.k + kv_at(s, pair), d.v + kv_at(s, pair));
      const int64_t first = pair % s.kv_heads * group;
      for (int64_t h = first; h < first + group; ++h) {
        const int64_t head = head_at(s, pair, h);
        forward_head(s, w, d.q + head, d.out + head, d.lse + lse_at(s, pair, h));
      }
    }
  }

  // Replaces the scores of a tile by p_ij = exp(s_ij - lse_i), and dscores by p_ij (dp_ij -
  // dots_i), with dots_i = <dout_i, out_i>. Both become 0 where row i must not attend to key j.
  static void backward_scores(const AttentionShape& s,
                              const Work& w,
                              int64_t first,
                              int64_t columns,
                              const W* lse,
                              const W* dots) {
    for (int64_t r = 0; r < kRows; ++r) {
      W *p = w.scores + r * w.keys, *ds = w.dscores + r * w.keys;
      const Keys seen = keys_of(s, first + r);
      const W shift = seen.last > 0 ? lse[first + r] : 0, dot = dots[r];
#pragma omp simd
      for (int64_t j = 0; j < columns; ++j) {
        p[j] = exp_of(p[j] - shift);
        ds[j] = p[j] * (ds[j] - dot);
      }
      fill_hidden(p, seen, columns, 0);
      fill_hidden(ds, seen, columns, 0);
    }
  }

  // The data of one query head. All are [S, token stride], except lse [S].
  struct Head {
    const T *q, *out, *dout;
    const W* lse;
    T* dq;
  };

  // Processes one query head: writes its dq and adds its contribution to dk and dv. The packed q
  // contains the factor `scale`, and therefore dk does too; dq is multiplied by it at the end.
  static void backward_head(const AttentionShape& s, const Work& w, const Head& h) {
    const int64_t token = s.heads * s.head_dim;
    for (int64_t first = 0; first < s.seq_len; first += kRows) {
      const int64_t rows = rows_of(s, first);
      Base::pack(h.q + first * token, rows, s.head_dim, token, scale_of(s), w.q, kRows, w.width);
      Base::pack(h.dout + first * token, rows, s.head_dim, token, 1, w.dout, kRows, w.width);
      Base::pack(h.out + first * token, rows, s.head_dim, token, 1, w.out, kRows, w.width);
      W dots[kRows] = {};
      for (int64_t r = 0; r < rows; ++r) {
        for (int64_t i = 0; i < s.head_dim; ++i)
          dots[r] += w.dout[r * w.width + i] * w.out[r * w.width + i];
      }
      const Tile scores = Base::with_keys(s, w, w.q, w.kt, w.scores, first);
      const int64_t columns = scores.columns;
      Base::template tile<false>(scores);
      Base::template tile<false>(Base::with_keys(s, w, w.dout, w.vt, w.dscores, first));
      backward_scores(s, w, first, columns, h.lse, dots);
      for (int64_t j = 0; j < columns; j += kRows) {
        // dv += p^T dout and dk += ds^T q, for kRows keys. The strides of A transpose it.
        Base::template tile<true>({.inner = kRows,
                                   .columns = w.width,
                                   .a = w.scores + j,
                                   .a_row = 1,
                                   .a_column = w.keys,
                                   .b = w.dout,
                                   .b_row = w.width,
                                   .c = w.dv + j * w.width,
                                   .c_row = w.width});
        Base::template tile<true>({.inner = kRows,
                                   .columns = w.width,
                                   .a = w.dscores + j,
                                   .a_row = 1,
                                   .a_column = w.keys,
                                   .b = w.q,
                                   .b_row = w.width,
                                   .c = w.dk + j * w.width,
                                   .c_row = w.width});
      }
      // dq = ds k. It overwrites w.out, which is not needed any more.
      Base::template tile<false>({.inner = columns,
                                  .columns = w.width,
                                  .a = w.dscores,
                                  .a_row = w.keys,
                                  .b = w.k,
                                  .b_row = w.width,
                                  .c = w.out,
                                  .c_row = w.width});
      for (int64_t r = 0; r < rows; ++r) {
        for (int64_t i = 0; i < s.head_dim; ++i) {
          store(h.dq[(first + r) * token + i], w.out[r * w.width + i] * scale_of(s));
        }
      }
    }
  }

  // See CpuKernels::attention_backward.
  static void backward(
      const AttentionShape& s, int64_t begin, int64_t end, const AttentionData<T>& d, W* scratch) {
    const Work w(s, scratch);
    const int64_t group = s.heads / s.kv_heads, kv_token = s.kv_heads * s.head_dim;
    for (int64_t pair = begin; pair < end; ++pair) {
      const int64_t at = kv_at(s, pair), first = pair % s.kv_heads * group;
      pack_keys(s, w, d.k + at, d.v + at);
      Base::transpose(w.v, w.keys, s.head_dim, w.width, w.vt, w.keys);
      for (int64_t i = 0; i < w.keys * w.width; ++i) w.dk[i] = w.dv[i] = 0;
      for (int64_t h = first; h < first + group; ++h) {
        const int64_t head = head_at(s, pair, h);
        backward_head(
            s,
            w,
            {d.q + head, d.out + head, d.dout + head, d.lse + lse_at(s, pair, h), d.dq + head});
      }
      for (int64_t t = 0; t < s.seq_len; ++t) {
        for (int64_t i = 0; i < s.head_dim; ++i) {
          store(d.dk[at + t * kv_token + i], w.dk[t * w.width + i]);
          store(d.dv[at + t * kv_token + i], w.dv[t * w.width + i]);
        }
      }
    }
  }
};

}  // namespace
}  // namespace yoke
