// Compares attention on the CPU with a plain version that computes one pair of tokens at a time.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>
#include <utility>
#include <vector>

#include "core/kernels/cpu_kernels.hpp"
#include "tests/unit/kernels/cpu_kernels_fixture.hpp"

namespace yoke {
namespace {

struct AttentionCase {
  std::vector<double> out, lse, dq, dk, dv;
};

// Returns where the document of each token begins, for documents of about this length.
std::vector<int64_t> starts_of(const AttentionShape& s, int64_t length) {
  std::vector<int64_t> starts;
  for (int64_t b = 0; b < s.batch; ++b) {
    int64_t start = 0;
    for (int64_t t = 0; t < s.seq_len; ++t) {
      if ((7 * t + 3 * b) % length == 0) start = t;
      starts.push_back(start);
    }
  }
  return starts;
}

// Computes attention one pair of tokens at a time, in double. starts: AttentionData::starts, or
// empty.
template <class T>
AttentionCase plain_attention(const AttentionShape& s,
                              const std::vector<T>& q,
                              const std::vector<T>& k,
                              const std::vector<T>& v,
                              const std::vector<T>& dout,
                              const std::vector<int64_t>& starts) {
  AttentionCase c;
  c.out.resize(q.size());
  c.dq.resize(q.size());
  c.dk.resize(k.size());
  c.dv.resize(k.size());
  c.lse.resize(static_cast<size_t>(s.batch * s.heads * s.seq_len));
  const double scale = 1 / std::sqrt(static_cast<double>(s.head_dim));
  const auto at_q = [&](int64_t b, int64_t t, int64_t h, int64_t i) {
    return static_cast<size_t>(((b * s.seq_len + t) * s.heads + h) * s.head_dim + i);
  };
  const auto at_k = [&](int64_t b, int64_t t, int64_t h, int64_t i) {
    return static_cast<size_t>(
        ((b * s.seq_len + t) * s.kv_heads + h / (s.heads / s.kv_heads)) * s.head_dim + i);
  };
  for (int64_t b = 0; b < s.batch; ++b) {
    for (int64_t h = 0; h < s.heads; ++h) {
      for (int64_t t = 0; t < s.seq_len; ++t) {
        std::vector<double> p, dp;
        double sum = 0, mean = 0;
        int64_t from = s.window > 0 ? std::max<int64_t>(0, t - s.window + 1) : 0;
        if (!starts.empty()) from = std::max(from, starts[static_cast<size_t>(b * s.seq_len + t)]);
        for (int64_t j = from; j <= t; ++j) {
          double score = 0, d = 0;
          for (int64_t i = 0; i < s.head_dim; ++i) {
            score += wide_of(q[at_q(b, t, h, i)]) * wide_of(k[at_k(b, j, h, i)]) * scale;
            d += wide_of(dout[at_q(b, t, h, i)]) * wide_of(v[at_k(b, j, h, i)]);
          }
          p.push_back(std::exp(score));
          dp.push_back(d);
          sum += p.back();
        }
        c.lse[static_cast<size_t>((b * s.heads + h) * s.seq_len + t)] = std::log(sum);
        for (size_t j = 0; j < p.size(); ++j) mean += (p[j] /= sum) * dp[j];
        for (int64_t j = from; j <= t; ++j) {
          const double weight = p[static_cast<size_t>(j - from)],
                       ds = weight * (dp[static_cast<size_t>(j - from)] - mean) * scale;
          for (int64_t i = 0; i < s.head_dim; ++i) {
            c.out[at_q(b, t, h, i)] += weight * wide_of(v[at_k(b, j, h, i)]);
            c.dv[at_k(b, j, h, i)] += weight * wide_of(dout[at_q(b, t, h, i)]);
            c.dq[at_q(b, t, h, i)] += ds * wide_of(k[at_k(b, j, h, i)]);
            c.dk[at_k(b, j, h, i)] += ds * wide_of(q[at_q(b, t, h, i)]);
          }
        }
      }
    }
  }
  return c;
}

template <class T>
struct Inputs {
  std::vector<T> q, k, v, dout;
  std::vector<int64_t> starts;  // AttentionData::starts, or empty
};

template <class T>
Inputs<T> random_inputs(const AttentionShape& s, std::vector<int64_t> starts = {}) {
  const int64_t nq = s.batch * s.seq_len * s.heads * s.head_dim, nk = nq / s.heads * s.kv_heads;
  return {random_values<T>(nq, 1),
          random_values<T>(nk, 2),
          random_values<T>(nk, 3),
          random_values<T>(nq, 4),
          std::move(starts)};
}

template <class T>
struct Results {
  std::vector<T> out, dq, dk, dv;
  std::vector<Wide<T>> lse;
};

// Runs the forward, one pair at a time, and the backward.
template <class T>
Results<T> compute(const CpuKernels<T>& kernels, const AttentionShape& s, const Inputs<T>& in) {
  using W = Wide<T>;
  // The initial content of the scratch must not matter.
  std::vector<W> scratch(static_cast<size_t>(kernels.attention_scratch(s)),
                         std::numeric_limits<W>::quiet_NaN());
  Results<T> r;
  for (std::vector<T>* of_queries : {&r.out, &r.dq}) of_queries->resize(in.q.size());
  for (std::vector<T>* of_keys : {&r.dk, &r.dv}) of_keys->resize(in.k.size());
  r.lse.resize(static_cast<size_t>(s.batch * s.heads * s.seq_len));
  const AttentionData<T> data{.q = in.q.data(),
                              .k = in.k.data(),
                              .v = in.v.data(),
                              .starts = in.starts.empty() ? nullptr : in.starts.data(),
                              .out = r.out.data(),
                              .lse = r.lse.data(),
                              .dout = in.dout.data(),
                              .dq = r.dq.data(),
                              .dk = r.dk.data(),
                              .dv = r.dv.data()};
  const int64_t pairs = s.batch * s.kv_heads;
  for (int64_t i = 0; i < pairs; ++i) kernels.attention_forward(s, i, i + 1, data, scratch.data());
  kernels.attention_backward(s, 0, pairs, data, scratch.data());
  return r;
}

template <class T>
class CpuAttentionTest : public CpuKernelsTest<T> {
 protected:
  // Compares all kernels with the plain version. documents: length of documents; 0 = one for each
  // sequence.
  void expect_plain_attention(const AttentionShape& s, int64_t documents) {
    const Inputs<T> in =
        random_inputs<T>(s, documents > 0 ? starts_of(s, documents) : std::vector<int64_t>());
    const AttentionCase expected = plain_attention(s, in.q, in.k, in.v, in.dout, in.starts);
    this->on_every_table([&](const CpuKernels<T>& kernels) {
      const Results<T> got = compute(kernels, s, in);
      this->expect_close(got.out, expected.out);
      this->expect_close(got.lse, expected.lse);
      this->expect_close(got.dq, expected.dq, 4 * kTolerance<T>);
      this->expect_close(got.dk, expected.dk, 4 * kTolerance<T>);
      this->expect_close(got.dv, expected.dv);
    });
  }
};
TYPED_TEST_SUITE(CpuAttentionTest, CpuKernelTypes);

TYPED_TEST(CpuAttentionTest, AttendsToThePastOfItsDocument) {
  for (const AttentionShape& s : {AttentionShape{1, 1, 1, 1, 2},
                                  AttentionShape{2, 5, 4, 2, 6},
                                  AttentionShape{1, 33, 6, 3, 10},
                                  AttentionShape{2, 64, 4, 4, 8},
                                  AttentionShape{1, 70, 2, 1, 40},
                                  AttentionShape{2, 33, 4, 2, 6, 1},
                                  AttentionShape{1, 70, 4, 2, 8, 9},
                                  AttentionShape{1, 21, 2, 2, 8, 20},
                                  AttentionShape{1, 21, 2, 2, 8, 21},
                                  // Longer sequences use larger tiles.
                                  AttentionShape{1, 128, 2, 1, 6},
                                  AttentionShape{1, 129, 2, 1, 6},
                                  AttentionShape{1, 150, 2, 1, 17, 33},
                                  AttentionShape{2, 140, 4, 2, 6, 130}}) {
    for (const int64_t documents : {0, 1, 13, 40}) {
      SCOPED_TRACE(::testing::Message()
                   << s.seq_len << " tokens, heads of " << s.head_dim << ", window " << s.window
                   << ", documents of " << documents);
      this->expect_plain_attention(s, documents);
    }
  }
}

// The last token must not change what earlier tokens compute, not even in the last bit, also if the
// scores that the mask hides overflow.
TYPED_TEST(CpuAttentionTest, DoesNotLookAhead) {
  using T = TypeParam;
  for (const int64_t length : {23, 151}) {
    const AttentionShape s{1, length, 1, 1, 8};
    const auto all = static_cast<size_t>(length * 8), earlier = all - 8;
    const auto bits_equal = [](const std::vector<T>& a, const std::vector<T>& b, size_t count) {
      return std::memcmp(a.data(), b.data(), count * sizeof(T)) == 0;
    };
    this->on_every_table([&](const CpuKernels<T>& kernels) {
      Inputs<T> in = random_inputs<T>(s);
      const Results<T> before = compute(kernels, s, in);
      for (size_t i = earlier; i < all; ++i) in.k[i] = narrow<T>(i % 2 == 0 ? 9000 : -9000);
      const Results<T> after = compute(kernels, s, in);
      EXPECT_TRUE(bits_equal(before.out, after.out, earlier));
      EXPECT_TRUE(bits_equal(before.dq, after.dq, earlier));
      EXPECT_FALSE(bits_equal(before.out, after.out, all));

      // The weight of a hidden value is 0, not merely small.
      for (size_t i = 0; i < all; ++i) in.v[i] = i < earlier ? T{} : narrow<T>(50);
      const std::vector<T> out = compute(kernels, s, in).out;
      for (size_t i = 0; i < earlier; ++i) EXPECT_EQ(wide_of(out[i]), 0);
    });
  }
}

}  // namespace
}  // namespace yoke
