// Causal attention on contiguous tensors, for sequences whose keys fit in the cache. Included by
// cpu_kernels_impl.cpp only. Everything has internal linkage; see cpu_vector_math.hpp.
//
// For one head, with scale = 1 / sqrt(D), query i and key j, i - window < j <= i and start_i <= j:
//
//   forward    s_ij = scale <q_i, k_j>      lse_i = log sum_j exp(s_ij)
//              p_ij = exp(s_ij - lse_i)     out_i = sum_j p_ij v_j
//   backward   dp_ij = <dout_i, v_j>        ds_ij = p_ij (dp_ij - <dout_i, out_i>)
//              dv_j = sum_i p_ij dout_i     dk_j = scale sum_i ds_ij q_i
//              dq_i = scale sum_j ds_ij k_j
//
// The backward does not store p: it computes the scores again and needs only lse, one number per
// query. <dout_i, out_i> equals sum_j p_ij dp_ij, so the softmax needs no second pass over j.
//
// Keys and values of one kv head are packed once into padded copies in the accumulation type, and
// are then used for all query heads that share it. Queries are taken kQueries at a time. The scores
// of a tile are stored with one row per key and one column per query, so that a vector holds scores
// of neighbouring queries. The maximum and the sum over the keys, and every product except for dk
// and dv, then fill whole vectors, however narrow the heads are. An earlier version had one row per
// query: a head of 8 dimensions left half of each vector of AVX-512 empty, each query needed
// reductions inside a vector, and forward and backward took 1.8 times as long (64 tokens, AMD EPYC
// with Zen 5).
//
// A full S x S matrix never exists. If the keys do not fit in the cache, an algorithm that also
// splits them (flash attention) is faster; see kLongestAttention.
#pragma once

#include "core/kernels/cpu_attention_tiles.hpp"
#include "core/kernels/cpu_vector_math.hpp"

namespace yoke {
namespace {

// The passes over the heads, for tensors of type T. A tile has kQueryVectors vectors of queries:
// with two, a load of a key serves twice as many products; with one, fewer scores are computed that
// the causal mask hides.
template <class T, int64_t kQueryVectors>
struct CausalAttention : Attention<Wide<T>, kQueryVectors> {
  using W = Wide<T>;
  using Base = Attention<W, kQueryVectors>;
  using typename Base::Keys;
  using typename Base::QueryTile;
  using typename Base::Work;
  static constexpr int64_t kQueries = Base::kQueries;

  static W scale_of(const AttentionShape& s) { return 1 / root(static_cast<W>(s.head_dim)); }

  // Replaces the scores of a tile by exp(s_ij - max_j s_ij), and by 0 where query i does not attend
  // to key j. Writes the sums over j and lse. The caller divides by the sums after the product with
  // v, which has fewer elements than the scores. Without the maximum, exp could overflow.
  static void unnormalised_softmax(const QueryTile& t, const Work& w, W* sums, W* lse) {
    // Keeps the hidden scores out of the maximum. They become 0 below, after the exponentials.
    Base::hide(t, w.scores, -3e38f);
    W top[kQueries];
    for (int64_t l = 0; l < kQueries; ++l) {
      top[l] = -3e38f;
      sums[l] = 0;
    }
    for (int64_t j = t.keys.first; j < t.keys.last; ++j) {
      const W* row = w.scores + j * kQueries;
#pragma omp simd
      for (int64_t l = 0; l < kQueries; ++l) top[l] = top[l] > row[l] ? top[l] : row[l];
    }
    for (int64_t j = t.keys.first; j < t.keys.last; ++j) {
      W* row = w.scores + j * kQueries;
#pragma omp simd
      for (int64_t l = 0; l < kQueries; ++l) row[l] = exp_of(row[l] - top[l]);
    }
    Base::hide(t, w.scores, 0);
    for (int64_t j = t.keys.first; j < t.keys.last; ++j) {
      const W* row = w.scores + j * kQueries;
#pragma omp simd
      for (int64_t l = 0; l < kQueries; ++l) sums[l] += row[l];
    }
    for (int64_t l = 0; l < t.count; ++l) lse[t.first + l] = top[l] + log_of(sums[l]);
  }

  // Computes one query head. q and out are [S, token stride], lse is [S].
  static void forward_head(const AttentionShape& s, const Work& w, const T* q, T* out, W* lse) {
    const int64_t token = s.heads * s.head_dim;
    for (int64_t first = 0; first < s.seq_len; first += kQueries) {
      const QueryTile t(s, w, first);
      const int64_t at = first * token;
      Base::pack_transposed(q + at, t.count, s.head_dim, token, scale_of(s), w.qt);
      Base::product_with_queries(w, t, w.k, w.qt, w.scores);
      W sums[kQueries];
      unnormalised_softmax(t, w, sums, lse);
      Base::sum_over_keys(w, t, w.v, w.scores, w.outt);
      const auto share = [&](int64_t query) { return 1 / sums[query]; };
      Base::unpack_transposed(w.outt, share, t.count, s.head_dim, out + at, token);
    }
  }

  // Packs keys and values of one kv head.
  static void pack_keys(const AttentionShape& s, const Work& w, const T* k, const T* v) {
    const int64_t token = s.kv_heads * s.head_dim;
    Base::pack(k, s.seq_len, s.head_dim, token, 1, w.k, w.keys, w.width);
    Base::pack(v, s.seq_len, s.head_dim, token, 1, w.v, w.keys, w.width);
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
  // dots_i), with dots_i = <dout_i, out_i>. Both become 0 where query i does not attend to key j.
  static void backward_scores(const QueryTile& t, const Work& w, const W* lse, const W* dots) {
    for (int64_t j = t.keys.first; j < t.keys.last; ++j) {
      W *p = w.scores + j * kQueries, *ds = w.dscores + j * kQueries;
#pragma omp simd
      for (int64_t l = 0; l < kQueries; ++l) {
        p[l] = exp_of(p[l] - lse[l]);
        ds[l] = p[l] * (ds[l] - dots[l]);
      }
    }
    Base::hide(t, w.scores, 0);
    Base::hide(t, w.dscores, 0);
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
    for (int64_t first = 0; first < s.seq_len; first += kQueries) {
      const QueryTile t(s, w, first);
      const int64_t at = first * token;
      Base::pack(h.q + at, t.count, s.head_dim, token, scale_of(s), w.q, t.count, w.width);
      Base::pack(h.dout + at, t.count, s.head_dim, token, 1, w.dout, t.count, w.width);
      Base::pack_transposed(h.q + at, t.count, s.head_dim, token, scale_of(s), w.qt);
      Base::pack_transposed(h.dout + at, t.count, s.head_dim, token, 1, w.doutt);
      Base::pack_transposed(h.out + at, t.count, s.head_dim, token, 1, w.outt);
      W lse[kQueries] = {}, dots[kQueries] = {};
      for (int64_t l = 0; l < t.count; ++l) lse[l] = h.lse[first + l];
      for (int64_t i = 0; i < s.head_dim; ++i) {
#pragma omp simd
        for (int64_t l = 0; l < kQueries; ++l)
          dots[l] += w.doutt[i * kQueries + l] * w.outt[i * kQueries + l];
      }
      Base::product_with_queries(w, t, w.k, w.qt, w.scores);
      Base::product_with_queries(w, t, w.v, w.doutt, w.dscores);
      backward_scores(t, w, lse, dots);
      Base::add_sum_over_queries(w, t, w.scores, w.dout, w.dv);
      Base::add_sum_over_queries(w, t, w.dscores, w.q, w.dk);
      // The transpose of dq overwrites outt, which is not needed any more.
      Base::sum_over_keys(w, t, w.k, w.dscores, w.outt);
      const auto scale = [&](int64_t) { return scale_of(s); };
      Base::unpack_transposed(w.outt, scale, t.count, s.head_dim, h.dq + at, token);
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
