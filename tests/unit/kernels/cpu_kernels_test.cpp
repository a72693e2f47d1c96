#include "core/kernels/cpu_kernels.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <vector>

#include "tests/unit/kernels/cpu_kernels_fixture.hpp"

namespace yoke {
namespace {

TYPED_TEST_SUITE(CpuKernelsTest, CpuKernelTypes);

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
      const auto backward = [&](const T* residual) {
        k.rms_backward(rows,
                       dim,
                       dy.data(),
                       x.data(),
                       w.data(),
                       rstd.data(),
                       residual,
                       dx.data(),
                       dweight.data());
      };
      backward(nullptr);
      this->expect_close(y, expected.y);
      this->expect_close(rstd, expected.rstd);
      this->expect_close(dx, expected.dx);
      this->expect_close(dweight, expected.dweight);
      backward(dy.data());
      std::vector<double> sum = expected.dx;
      for (size_t i = 0; i < sum.size(); ++i) sum[i] += wide_of(dy[i]);
      this->expect_close(dx, sum);
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
  // An ignored row has no gradient, whatever its logits are. Bits that are all 1 are a NaN.
  std::memset(&logits[2 * 301], 0xff, sizeof(T));
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
    std::vector<T> got = logits;
    EXPECT_NEAR(
        k.cross_entropy_forward(rows, vocab, logits.data(), targets.data(), -100, lse.data()) /
            loss,
        1,
        sizeof(W) == 8 ? 1e-14 : 1e-5);
    k.cross_entropy_backward(rows, vocab, got.data(), targets.data(), -100, lse.data(), W{0.25});
    // In fp32, a log-sum-exp near 1000 has a rounding error of up to 3e-5.
    this->expect_close(got, dlogits, std::max(kTolerance<T>, sizeof(W) == 8 ? 1e-12 : 1e-4));
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
