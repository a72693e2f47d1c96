// Causal attention on contiguous tensors, for sequences whose keys fit in the cache. Included by
// cpu_kernels_impl.cpp only. Everything has internal linkage; see cpu_vector_math.hpp.
//
// For one head, with scale = 1 / sqrt(D) and rows i, j of the sequence, i - window < j <= i
// and start_i <= j:
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

#include "core/kernels/cpu_attention_tiles.hpp"
#include "core/kernels/cpu_vector_math.hpp"

namespace yoke {
namespace {

// The passes over the heads, for tensors of type T.
template <class T>
struct CausalAttention : Attention<Wide<T>> {
  using W = Wide<T>;
  using Base = Attention<W>;
  using typename Base::Keys;
  using typename Base::Work;

  // Returns the number of queries in the tile that starts at row `first`.
  static int64_t rows_of(const AttentionShape& s, int64_t first) {
    return s.seq_len - first < kRows ? s.seq_len - first : kRows;
  }
  // Writes `value` to the columns of a row of scores that are among `keys`, but not seen.
  static void fill_hidden(W* row, const Keys& seen, const Keys& keys, W value) {
    for (int64_t j = keys.first; j < seen.first; ++j) row[j] = value;
    for (int64_t j = seen.last > keys.first ? seen.last : keys.first; j < keys.last; ++j)
      row[j] = value;
  }
  static W scale_of(const AttentionShape& s) { return 1 / root(static_cast<W>(s.head_dim)); }

  // Replaces the scores of a tile by exp(s_ij - max_j s_ij), and by 0 where row i must not attend
  // to key j. Writes the row sums and lse. The caller divides by the sums after the product with v:
  // D divisions per row instead of one for each key. Without the maximum, exp could overflow.
  static void unnormalised_softmax(
      const AttentionShape& s, const Work& w, int64_t first, const Keys& keys, W* sums, W* lse) {
    for (int64_t r = 0; r < kRows; ++r) {
      W* row = w.scores + r * w.keys;
      const Keys seen = Base::keys_of(s, w, first + r);
      // Keeps these columns out of the maximum. They become 0 below, after the exponentials.
      fill_hidden(row, seen, keys, -3e38f);
      W top = row[keys.first];
#pragma omp simd reduction(max : top)
      for (int64_t j = keys.first; j < keys.last; ++j) top = top > row[j] ? top : row[j];
      W sum = 0;
#pragma omp simd
      for (int64_t j = keys.first; j < keys.last; ++j) row[j] = exp_of(row[j] - top);
      fill_hidden(row, seen, keys, 0);
#pragma omp simd reduction(+ : sum)
      for (int64_t j = keys.first; j < keys.last; ++j) sum += row[j];
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
      const Keys keys = Base::keys_of_tile(s, w, first);
      Base::template tile<false>(Base::with_keys(s, w, w.q, w.kt, w.scores, keys));
      W sums[kRows];
      unnormalised_softmax(s, w, first, keys, sums, lse);
      Base::template tile<false>({.inner = keys.count(),
                                  .columns = w.width,
                                  .a = w.scores + keys.first,
                                  .a_row = w.keys,
                                  .b = w.v + keys.first * w.width,
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

  static const int64_t* starts_of(const AttentionShape& s,
                                  const AttentionData<T>& d,
                                  int64_t pair) {
    return d.starts != nullptr ? d.starts + pair / s.kv_heads * s.seq_len : nullptr;
  }

  // See CpuKernels::attention_forward.
  static void forward(
      const AttentionShape& s, int64_t begin, int64_t end, const AttentionData<T>& d, W* scratch) {
    Work w(s, scratch);
    const int64_t group = s.heads / s.kv_heads;
    for (int64_t pair = begin; pair < end; ++pair) {
      w.starts = starts_of(s, d, pair);
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
                              const Keys& keys,
                              const W* lse,
                              const W* dots) {
    for (int64_t r = 0; r < kRows; ++r) {
      W *p = w.scores + r * w.keys, *ds = w.dscores + r * w.keys;
      const Keys seen = Base::keys_of(s, w, first + r);
      const W shift = seen.last > 0 ? lse[first + r] : 0, dot = dots[r];
#pragma omp simd
      for (int64_t j = keys.first; j < keys.last; ++j) {
        p[j] = exp_of(p[j] - shift);
        ds[j] = p[j] * (ds[j] - dot);
      }
      fill_hidden(p, seen, keys, 0);
      fill_hidden(ds, seen, keys, 0);
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
      const Keys keys = Base::keys_of_tile(s, w, first);
      Base::template tile<false>(Base::with_keys(s, w, w.q, w.kt, w.scores, keys));
      Base::template tile<false>(Base::with_keys(s, w, w.dout, w.vt, w.dscores, keys));
      backward_scores(s, w, first, keys, h.lse, dots);
      for (int64_t j = keys.first; j < keys.last; j += kRows) {
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
      Base::template tile<false>({.inner = keys.count(),
                                  .columns = w.width,
                                  .a = w.dscores + keys.first,
                                  .a_row = w.keys,
                                  .b = w.k + keys.first * w.width,
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
    Work w(s, scratch);
    const int64_t group = s.heads / s.kv_heads, kv_token = s.kv_heads * s.head_dim;
    for (int64_t pair = begin; pair < end; ++pair) {
      const int64_t at = kv_at(s, pair), first = pair % s.kv_heads * group;
      w.starts = starts_of(s, d, pair);
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
