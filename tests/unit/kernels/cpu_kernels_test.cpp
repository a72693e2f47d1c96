#include "core/kernels/cpu_kernels.hpp"

#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <limits>
#include <random>
#include <vector>

namespace yoke {
namespace {

double wide_of(double x) {
  return x;
}
double wide_of(float x) {
  return x;
}
double wide_of(BFloat16 x) {
  const uint32_t bits = uint32_t{x.bits} << 16;
  float f;
  std::memcpy(&f, &bits, 4);
  return f;
}

template <class T>
T narrow(double x) {
  return static_cast<T>(x);
}
// Rounds by choosing the nearer of the two neighbours. This shares nothing with the kernels.
template <>
BFloat16 narrow<BFloat16>(double x) {
  const float f = static_cast<float>(x);
  uint32_t bits;
  std::memcpy(&bits, &f, 4);
  const BFloat16 down{static_cast<uint16_t>(bits >> 16)},
      up{static_cast<uint16_t>((bits >> 16) + 1)};
  const double to_down = std::abs(x - wide_of(down)), to_up = std::abs(x - wide_of(up));
  if (to_down == to_up) return down.bits % 2 == 0 ? down : up;
  return to_down < to_up ? down : up;
}

template <class T>
std::vector<T> random_values(int64_t count, uint32_t seed, double scale = 1) {
  std::mt19937 random(seed);
  std::normal_distribution<double> normal(0, scale);
  std::vector<T> out;
  for (int64_t i = 0; i < count; ++i) out.push_back(narrow<T>(normal(random)));
  return out;
}

template <class T>
const CpuKernels<T>& of(const CpuKernelTable& t);
template <>
const CpuKernels<float>& of(const CpuKernelTable& t) {
  return t.f32;
}
template <>
const CpuKernels<double>& of(const CpuKernelTable& t) {
  return t.f64;
}
template <>
const CpuKernels<BFloat16>& of(const CpuKernelTable& t) {
  return t.bf16;
}

// Bound of the error, relative to the largest expected value: the rounding of one output element
// and of a sum of some hundred terms.
template <class T>
constexpr double kTolerance = sizeof(T) == 8   ? 1e-14
                              : sizeof(T) == 4 ? 3e-6
                                               : 5e-3;

// Runs every case in every type on every instruction set that this machine has.
template <class T>
class CpuKernelsTest : public ::testing::Test {
 protected:
  using W = Wide<T>;

  template <class F>
  void on_every_table(F&& f) {
    const CpuKernelTables all = all_cpu_kernels();
    for (int i = 0; i < all.count; ++i) {
      SCOPED_TRACE(all.table[i]->instruction_set);
      f(of<T>(*all.table[i]));
    }
  }

  template <class Got>
  static void expect_close(const std::vector<Got>& got,
                           const std::vector<double>& expected,
                           double tolerance = kTolerance<T>) {
    ASSERT_EQ(got.size(), expected.size());
    // Inputs are of size 1. The floor of 0.1 is for sums that cancel to nothing, which have no
    // meaningful relative error.
    double top = 0.1, worst = 0;
    size_t where = 0;
    for (const double e : expected) top = std::max(top, std::abs(e));
    for (size_t i = 0; i < got.size(); ++i) {
      const double error = std::abs(wide_of(got[i]) - expected[i]);
      if (error > worst || std::isnan(error)) {
        worst = error;
        where = i;
      }
    }
    EXPECT_LE(worst / top, tolerance)
        << "at " << where << ": " << wide_of(got[where]) << ", expected " << expected[where];
  }
};

using Types = ::testing::Types<float, double, BFloat16>;
TYPED_TEST_SUITE(CpuKernelsTest, Types);

struct NormCase {
  std::vector<double> y, rstd, dx, dweight;
};

template <class T>
NormCase plain_norm(int64_t rows,
                    int64_t dim,
                    const std::vector<T>& x,
                    const std::vector<T>& w,
                    const std::vector<T>& dy,
                    double eps) {
  NormCase c;
  c.dweight.assign(static_cast<size_t>(dim), 1.0);  // the kernel adds to it
  for (int64_t r = 0; r < rows; ++r) {
    const auto at = [&](const std::vector<T>& v, int64_t i) {
      return wide_of(v[static_cast<size_t>(r * dim + i)]);
    };
    const auto weight = [&](int64_t i) { return wide_of(w[static_cast<size_t>(i)]); };
    double squares = 0, dot = 0;
    for (int64_t i = 0; i < dim; ++i) squares += at(x, i) * at(x, i);
    const double scale = 1 / std::sqrt(squares / static_cast<double>(dim) + eps);
    for (int64_t i = 0; i < dim; ++i) dot += at(dy, i) * weight(i) * at(x, i);
    c.rstd.push_back(scale);
    for (int64_t i = 0; i < dim; ++i) {
      c.y.push_back(at(x, i) * scale * weight(i));
      c.dx.push_back(scale * at(dy, i) * weight(i) -
                     at(x, i) * dot * scale * scale * scale / static_cast<double>(dim));
      c.dweight[static_cast<size_t>(i)] += at(dy, i) * at(x, i) * scale;
    }
  }
  return c;
}

TYPED_TEST(CpuKernelsTest, NormalisesRows) {
  using T = TypeParam;
  using W = Wide<T>;
  for (const int64_t dim : {1, 7, 64, 130}) {
    const int64_t rows = 5;
    const auto x = random_values<T>(rows * dim, 1), w = random_values<T>(dim, 2),
               dy = random_values<T>(rows * dim, 3);
    const NormCase expected = plain_norm(rows, dim, x, w, dy, 1e-5);
    this->on_every_table([&](const CpuKernels<T>& k) {
      std::vector<T> y(x.size()), dx(x.size());
      std::vector<W> rstd(rows), dweight(static_cast<size_t>(dim), 1);
      k.rms_forward(rows, dim, x.data(), w.data(), static_cast<W>(1e-5), y.data(), rstd.data());
      k.rms_backward(
          rows, dim, dy.data(), x.data(), w.data(), rstd.data(), dx.data(), dweight.data());
      this->expect_close(y, expected.y);
      this->expect_close(rstd, expected.rstd);
      this->expect_close(dx, expected.dx);
      this->expect_close(dweight, expected.dweight);
    });
  }
}

TYPED_TEST(CpuKernelsTest, RotatesHalvesAndBack) {
  using T = TypeParam;
  using W = Wide<T>;
  const int64_t tokens = 3, heads = 2, dim = 10, half = 5;
  const auto x = random_values<T>(tokens * heads * dim, 1);
  std::vector<W> cos, sin;
  for (int64_t i = 0; i < tokens * half; ++i) {
    cos.push_back(static_cast<W>(std::cos(0.3 * static_cast<double>(i))));
    sin.push_back(static_cast<W>(std::sin(0.3 * static_cast<double>(i))));
  }
  std::vector<double> expected(x.size());
  for (int64_t t = 0; t < tokens; ++t) {
    for (int64_t h = 0; h < heads; ++h) {
      for (int64_t i = 0; i < half; ++i) {
        const size_t at = static_cast<size_t>((t * heads + h) * dim + i);
        const double a = wide_of(x[at]), b = wide_of(x[at + half]),
                     angle = 0.3 * static_cast<double>(t * half + i);
        expected[at] = a * std::cos(angle) - b * std::sin(angle);
        expected[at + half] = a * std::sin(angle) + b * std::cos(angle);
      }
    }
  }
  this->on_every_table([&](const CpuKernels<T>& k) {
    std::vector<T> y(x.size()), back(x.size());
    k.rotary(tokens, heads, dim, x.data(), cos.data(), sin.data(), 1, y.data());
    this->expect_close(y, expected);
    k.rotary(tokens, heads, dim, y.data(), cos.data(), sin.data(), -1, back.data());
    std::vector<double> original;
    for (const T v : x) original.push_back(wide_of(v));
    this->expect_close(back, original, 2 * kTolerance<T>);
  });
}

TYPED_TEST(CpuKernelsTest, GatesWithSilu) {
  using T = TypeParam;
  const int64_t count = 77;
  auto g = random_values<T>(count, 1, 4);
  g[0] = narrow<T>(-200);  // exp overflows
  g[1] = narrow<T>(200);
  const auto u = random_values<T>(count, 2), dy = random_values<T>(count, 3);
  std::vector<double> y, dg, du;
  for (size_t i = 0; i < g.size(); ++i) {
    const double x = wide_of(g[i]), s = 1 / (1 + std::exp(-x));
    y.push_back(x * s * wide_of(u[i]));
    du.push_back(wide_of(dy[i]) * x * s);
    dg.push_back(wide_of(dy[i]) * wide_of(u[i]) * (s + x * s * (1 - s)));
  }
  this->on_every_table([&](const CpuKernels<T>& k) {
    std::vector<T> got(count), got_dg(count), got_du(count);
    k.swiglu_forward(count, g.data(), u.data(), got.data());
    k.swiglu_backward(count, dy.data(), g.data(), u.data(), got_dg.data(), got_du.data());
    this->expect_close(got, y);
    this->expect_close(got_dg, dg);
    this->expect_close(got_du, du);
  });
}

TYPED_TEST(CpuKernelsTest, SumsTheCrossEntropy) {
  using T = TypeParam;
  using W = Wide<T>;
  const int64_t rows = 4, vocab = 301;
  auto logits = random_values<T>(rows * vocab, 1, 5);
  for (size_t i = 0; i < 301; ++i)
    logits[i] = narrow<T>(wide_of(logits[i]) + 1000);  // only differences matter
  const std::vector<int64_t> targets{300, 0, -100, 17};
  double loss = 0;
  std::vector<double> dlogits(logits.size());
  for (int64_t r = 0; r < rows; ++r) {
    const auto at = [&](int64_t i) { return wide_of(logits[static_cast<size_t>(r * vocab + i)]); };
    double top = at(0), sum = 0;
    for (int64_t i = 0; i < vocab; ++i) top = std::max(top, at(i));
    for (int64_t i = 0; i < vocab; ++i) sum += std::exp(at(i) - top);
    const int64_t t = targets[static_cast<size_t>(r)];
    if (t < 0) continue;
    loss += top + std::log(sum) - at(t);
    for (int64_t i = 0; i < vocab; ++i) {
      dlogits[static_cast<size_t>(r * vocab + i)] =
          0.25 * (std::exp(at(i) - top) / sum - (i == t ? 1 : 0));
    }
  }
  this->on_every_table([&](const CpuKernels<T>& k) {
    std::vector<W> lse(rows);
    std::vector<T> got(logits.size());
    EXPECT_NEAR(
        k.cross_entropy_forward(rows, vocab, logits.data(), targets.data(), -100, lse.data()) /
            loss,
        1,
        sizeof(W) == 8 ? 1e-14 : 1e-5);
    k.cross_entropy_backward(
        rows, vocab, logits.data(), targets.data(), -100, lse.data(), W{0.25}, got.data());
    // lse near 1000 has an error of half a unit in fp32, 3e-5.
    this->expect_close(got, dlogits, std::max(kTolerance<T>, sizeof(W) == 8 ? 1e-12 : 1e-4));
  });
}

struct AttentionCase {
  std::vector<double> out, lse, dq, dk, dv;
};

// Computes attention one pair of tokens at a time, in double.
template <class T>
AttentionCase plain_attention(const AttentionShape& s,
                              const std::vector<T>& q,
                              const std::vector<T>& k,
                              const std::vector<T>& v,
                              const std::vector<T>& dout) {
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
        for (int64_t j = 0; j <= t; ++j) {
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
        for (int64_t j = 0; j <= t; ++j) {
          const double weight = p[static_cast<size_t>(j)],
                       ds = weight * (dp[static_cast<size_t>(j)] - mean) * scale;
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

TYPED_TEST(CpuKernelsTest, AttendsToThePast) {
  using T = TypeParam;
  using W = Wide<T>;
  for (const AttentionShape& s : {AttentionShape{1, 1, 1, 1, 2},
                                  AttentionShape{2, 5, 4, 2, 6},
                                  AttentionShape{1, 33, 6, 3, 10},
                                  AttentionShape{2, 64, 4, 4, 8},
                                  AttentionShape{1, 70, 2, 1, 40}}) {
    SCOPED_TRACE(testing::Message() << s.seq_len << " tokens, heads of " << s.head_dim);
    const int64_t nq = s.batch * s.seq_len * s.heads * s.head_dim, nk = nq / s.heads * s.kv_heads;
    const auto q = random_values<T>(nq, 1), k = random_values<T>(nk, 2),
               v = random_values<T>(nk, 3), dout = random_values<T>(nq, 4);
    const AttentionCase expected = plain_attention(s, q, k, v, dout);
    this->on_every_table([&](const CpuKernels<T>& kernels) {
      // The initial content of the scratch must not matter.
      std::vector<W> scratch(static_cast<size_t>(kernels.attention_scratch(s)),
                             std::numeric_limits<W>::quiet_NaN());
      std::vector<T> out(q.size()), dq(q.size()), dk(k.size()), dv(k.size());
      std::vector<W> lse(expected.lse.size());
      const AttentionData<T> data{.q = q.data(),
                                  .k = k.data(),
                                  .v = v.data(),
                                  .out = out.data(),
                                  .lse = lse.data(),
                                  .dout = dout.data(),
                                  .dq = dq.data(),
                                  .dk = dk.data(),
                                  .dv = dv.data()};
      const int64_t pairs = s.batch * s.kv_heads;
      for (int64_t i = 0; i < pairs; ++i)
        kernels.attention_forward(s, i, i + 1, data, scratch.data());
      kernels.attention_backward(s, 0, pairs, data, scratch.data());
      this->expect_close(out, expected.out);
      this->expect_close(lse, expected.lse);
      this->expect_close(dq, expected.dq, 4 * kTolerance<T>);
      this->expect_close(dk, expected.dk, 4 * kTolerance<T>);
      this->expect_close(dv, expected.dv);
    });
  }
}

// The last token must not change the outputs of earlier tokens, not even in the last bit.
TYPED_TEST(CpuKernelsTest, DoesNotLookAhead) {
  using T = TypeParam;
  using W = Wide<T>;
  const AttentionShape s{1, 21, 1, 1, 8};
  const auto q = random_values<T>(21 * 8, 1), v = random_values<T>(21 * 8, 3);
  auto k = random_values<T>(21 * 8, 2);
  this->on_every_table([&](const CpuKernels<T>& kernels) {
    std::vector<W> scratch(static_cast<size_t>(kernels.attention_scratch(s))), lse(21);
    std::vector<T> before(q.size()), after(q.size());
    AttentionData<T> data{
        .q = q.data(), .k = k.data(), .v = v.data(), .out = before.data(), .lse = lse.data()};
    kernels.attention_forward(s, 0, 1, data, scratch.data());
    for (size_t i = 20 * 8; i < k.size(); ++i) k[i] = narrow<T>(50);
    data.out = after.data();
    kernels.attention_forward(s, 0, 1, data, scratch.data());
    EXPECT_EQ(std::memcmp(before.data(), after.data(), 20 * 8 * sizeof(T)), 0);
    EXPECT_NE(std::memcmp(before.data(), after.data(), before.size() * sizeof(T)), 0);
    k = random_values<T>(21 * 8, 2);
  });
}

TEST(CpuKernelTables, BeginWithTheBaselineAndEndWithTheOneInUse) {
  const CpuKernelTables all = all_cpu_kernels();
  ASSERT_GE(all.count, 1);
  EXPECT_STREQ(all.table[0]->instruction_set, "kernels_baseline");
  EXPECT_EQ(all.table[all.count - 1], &cpu_kernels());
}

TEST(CpuKernelTables, MakeTheSameInitialBits) {
  const CpuKernelTables all = all_cpu_kernels();
  std::vector<float> first(1001), other(1001);
  all.table[0]->init_uniform(12345, 0.02, 77, 1001, first.data());
  for (int i = 1; i < all.count; ++i) {
    all.table[i]->init_uniform(12345, 0.02, 77, 1001, other.data());
    EXPECT_EQ(std::memcmp(first.data(), other.data(), first.size() * sizeof(float)), 0)
        << all.table[i]->instruction_set;
  }
}

}  // namespace
}  // namespace yoke
