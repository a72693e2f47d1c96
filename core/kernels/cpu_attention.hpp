// Causal attention over compact heads, for sequences whose keys fit a cache. Included by
// cpu_kernels_impl.cpp only; internal linkage, see cpu_vector_math.hpp.
//
// Keys and values of one head are packed once into wide, padded copies; queries come in tiles of
// kRows, and everything is one small product after the other, tile() below. A group of query heads
// shares a kv head.
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

constexpr int64_t kRows = 8;

template <class W>
struct Attention {
  typedef W Vec __attribute__((vector_size(kVectorBytes), aligned(sizeof(W)), may_alias));
  static constexpr int64_t kLanes = kVectorBytes / static_cast<int64_t>(sizeof(W));

  static int64_t padded(int64_t n) {
    const int64_t unit = kLanes > kRows ? kLanes : kRows;
    return (n + unit - 1) / unit * unit;
  }

  // C [kRows, columns] = (or, Add, +=) A [kRows, inner] B [inner, columns]; A has two strides, so
  // that it may be a transposed view. Columns in vectors, two at a time.
  struct Tile {
    int64_t inner, columns;
    const W* a;
    int64_t a_row, a_column;
    const W* b;
    int64_t b_row;
    W* c;
    int64_t c_row;
  };

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

  template <bool kAdd>
  static void tile(const Tile& t) {
    int64_t at = 0;
    for (; at + 2 * kLanes <= t.columns; at += 2 * kLanes) columns<2, kAdd>(t, at);
    for (; at < t.columns; at += kLanes) columns<1, kAdd>(t, at);
  }

  // dst [rows, width] = src [rows, D] with a row stride, times factor; the rest of dst is 0.
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

  // dst [D, width] = src [rows, width of D rows] transposed.
  static void transpose(
      const W* src, int64_t rows, int64_t dim, int64_t src_row, W* dst, int64_t width) {
    for (int64_t i = 0; i < dim; ++i) {
      for (int64_t r = 0; r < rows; ++r) dst[i * width + r] = src[r * src_row + i];
    }
  }

  // Sizes of one head, and the scratch arrays cut out of one allocation.
  struct Work {
    int64_t keys, width;  // padded sequence length, padded head dim
    W *k, *v, *kt, *vt, *dk, *dv, *q, *dout, *out, *scores, *dscores;

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

  static int64_t scratch(const AttentionShape& s) {
    const int64_t keys = padded(s.seq_len), width = padded(s.head_dim);
    return 4 * keys * width + 2 * s.head_dim * keys + 3 * kRows * width + 2 * kRows * keys;
  }

  // Products of a query tile with the keys that its last row may see.
  static Tile with_keys(
      const AttentionShape& s, const Work& w, const W* a, const W* bt, W* c, int64_t first) {
    const int64_t seen = first + kRows < s.seq_len ? first + kRows : s.seq_len;
    return {
        s.head_dim, (seen + kLanes - 1) / kLanes * kLanes, a, w.width, 1, bt, w.keys, c, w.keys};
  }
};

template <class T>
struct CausalAttention : Attention<Wide<T>> {
  using W = Wide<T>;
  using Base = Attention<W>;
  using typename Base::Tile;
  using typename Base::Work;

  static int64_t rows_of(const AttentionShape& s, int64_t first) {
    return s.seq_len - first < kRows ? s.seq_len - first : kRows;
  }
  static W scale_of(const AttentionShape& s) { return 1 / root(static_cast<W>(s.head_dim)); }

  // Scores to weights exp(score - top), unnormalised; what row i must not see becomes 0.
  static void soften(
      const AttentionShape& s, const Work& w, int64_t first, int64_t columns, W* sums, W* lse) {
    for (int64_t r = 0; r < kRows; ++r) {
      W* row = w.scores + r * w.keys;
      const int64_t seen = first + r < s.seq_len ? first + r + 1 : 0;
      for (int64_t j = seen; j < columns; ++j) row[j] = -3e38f;
      W top = row[0];
#pragma omp simd reduction(max : top)
      for (int64_t j = 0; j < columns; ++j) top = top > row[j] ? top : row[j];
      W sum = 0;
#pragma omp simd
      for (int64_t j = 0; j < columns; ++j) row[j] = exp_of(row[j] - top);
      for (int64_t j = seen; j < columns; ++j) row[j] = 0;
#pragma omp simd reduction(+ : sum)
      for (int64_t j = 0; j < columns; ++j) sum += row[j];
      sums[r] = sum;
      if (seen > 0) lse[first + r] = top + log_of(sum);
    }
  }

  static void forward_head(const AttentionShape& s, const Work& w, const T* q, T* out, W* lse) {
    const int64_t token = s.heads * s.head_dim;
    for (int64_t first = 0; first < s.seq_len; first += kRows) {
      const int64_t rows = rows_of(s, first);
      Base::pack(q + first * token, rows, s.head_dim, token, scale_of(s), w.q, kRows, w.width);
      const Tile scores = Base::with_keys(s, w, w.q, w.kt, w.scores, first);
      Base::template tile<false>(scores);
      W sums[kRows];
      soften(s, w, first, scores.columns, sums, lse);
      Base::template tile<false>(
          {scores.columns, w.width, w.scores, w.keys, 1, w.v, w.width, w.out, w.width});
      for (int64_t r = 0; r < rows; ++r) {
        for (int64_t i = 0; i < s.head_dim; ++i)
          store(out[(first + r) * token + i], w.out[r * w.width + i] / sums[r]);
      }
    }
  }

  static void pack_keys(const AttentionShape& s, const Work& w, const T* k, const T* v) {
    const int64_t token = s.kv_heads * s.head_dim;
    Base::pack(k, s.seq_len, s.head_dim, token, 1, w.k, w.keys, w.width);
    Base::pack(v, s.seq_len, s.head_dim, token, 1, w.v, w.keys, w.width);
    Base::transpose(w.k, w.keys, s.head_dim, w.width, w.kt, w.keys);
  }

  // Where sequence and kv head of a pair begin in k and v, and a query head of it in q and out.
  static int64_t kv_at(const AttentionShape& s, int64_t pair) {
    return (pair / s.kv_heads * s.seq_len * s.kv_heads + pair % s.kv_heads) * s.head_dim;
  }
  static int64_t head_at(const AttentionShape& s, int64_t pair, int64_t h) {
    return (pair / s.kv_heads * s.seq_len * s.heads + h) * s.head_dim;
  }
  static int64_t lse_at(const AttentionShape& s, int64_t pair, int64_t h) {
    return (pair / s.kv_heads * s.heads + h) * s.seq_len;
  }

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

  // Weights p = exp(score - lse) and, in dscores, p * (dp - <dout, out>).
  static void backward_scores(const AttentionShape& s,
                              const Work& w,
                              int64_t first,
                              int64_t columns,
                              const W* lse,
                              const W* dots) {
    for (int64_t r = 0; r < kRows; ++r) {
      W *p = w.scores + r * w.keys, *ds = w.dscores + r * w.keys;
      const int64_t seen = first + r < s.seq_len ? first + r + 1 : 0;
      const W shift = seen > 0 ? lse[first + r] : 0, dot = dots[r];
#pragma omp simd
      for (int64_t j = 0; j < columns; ++j) {
        p[j] = exp_of(p[j] - shift);
        ds[j] = p[j] * (ds[j] - dot);
      }
      for (int64_t j = seen; j < columns; ++j) p[j] = ds[j] = 0;
    }
  }

  // Pointers of one query head, all [S, token stride].
  struct Head {
    const T *q, *out, *dout;
    const W* lse;
    T* dq;
  };

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
        Base::template tile<true>({kRows,
                                   w.width,
                                   w.scores + j,
                                   1,
                                   w.keys,
                                   w.dout,
                                   w.width,
                                   w.dv + j * w.width,
                                   w.width});
        Base::template tile<true>(
            {kRows, w.width, w.dscores + j, 1, w.keys, w.q, w.width, w.dk + j * w.width, w.width});
      }
      Base::template tile<false>(
          {columns, w.width, w.dscores, w.keys, 1, w.k, w.width, w.out, w.width});
      for (int64_t r = 0; r < rows; ++r) {
        for (int64_t i = 0; i < s.head_dim; ++i) {
          store(h.dq[(first + r) * token + i], w.out[r * w.width + i] * scale_of(s));
        }
      }
    }
  }

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
