// Compares the kernels of every instruction set with a plain loop in fp64.
#include "plugins/deepspeed_stub/kernels/kernels.hpp"

#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <limits>
#include <random>
#include <vector>

#include "yoke/backend.hpp"
#include "yoke/half.h"
#include "yoke/optimizer.h"

namespace yoke::deepspeed_stub {
namespace {

// The count is odd, so that no vector width divides it, and large enough for several vectors and a
// remainder.
constexpr int64_t kCount = 1003;
constexpr Rows kAll = one_row(kCount);
// The bounds allow for a few roundings: the wide instruction sets fuse multiplications and
// additions.
constexpr double kFp32 = 1e-6, kFp64 = 1e-14;

double widen(float x) {
  return x;
}
double widen(double x) {
  return x;
}
double widen(BFloat16 x) {
  const uint32_t bits = uint32_t{x.bits} << 16;
  float value;
  std::memcpy(&value, &bits, sizeof value);
  return value;
}

// Rounds to nearest, ties to even, by choosing one of the two neighbours.
BFloat16 plain_round(float x) {
  uint32_t bits;
  std::memcpy(&bits, &x, sizeof bits);
  const BFloat16 below{static_cast<uint16_t>(bits >> 16)};
  if (std::isnan(x)) return {static_cast<uint16_t>((bits >> 16) | 0x40)};
  if ((bits & 0xffff) == 0) return below;
  const BFloat16 above{static_cast<uint16_t>((bits >> 16) + 1)};
  const uint32_t rest = bits & 0xffff;
  if (rest != 0x8000) return rest > 0x8000 ? above : below;
  return below.bits % 2 == 0 ? below : above;
}

double widen(Float16 x) {
  return yoke_half_to_float(x.bits);
}

// Rounds to T; fp16 is tested in tests/sdk/half_test.cpp.
template <class T>
T rounded(float x) {
  if constexpr (std::is_same_v<T, BFloat16>) return plain_round(x);
  if constexpr (std::is_same_v<T, Float16>) return {yoke_float_to_half(x)};
  return static_cast<T>(x);
}

template <class T>
std::vector<T> values(unsigned seed, double scale = 1, double shift = 0) {
  std::mt19937 random(seed);
  std::normal_distribution<double> normal;
  std::vector<T> list(kCount);
  for (T& x : list) {
    const double value = scale * normal(random) + shift;
    if constexpr (sizeof(T) == 2) {
      x = rounded<T>(static_cast<float>(value));
    } else {
      x = static_cast<T>(value);
    }
  }
  return list;
}

constexpr int32_t kAdams[] = {YOKE_ADAMW, YOKE_ADAM, YOKE_ADAMW_UNCORRECTED, YOKE_ADAM_UNCORRECTED};

// Returns the constants of step 5 with weight decay.
YokeUpdate step_of(int32_t kind) {
  YokeOptimizer o{};
  o.kind = kind;
  o.beta1 = 0.9;
  o.beta2 = 0.95;
  o.eps = 1e-8;
  o.weight_decay = 0.1;
  return yoke_update_step(&o, 5, 3e-3, 1);
}

// The arrays of an update, and a copy of those that it changes.
template <class Master, class Gradient, class Copy>
struct UpdateCase {
  std::vector<Master> p = values<Master>(1), m = values<Master>(2, 1e-2);
  std::vector<Master> v = values<Master>(3, 1e-4, 1e-3), p0, m0, v0;
  std::vector<Gradient> g = values<Gradient>(4, 0.1);
  std::vector<Copy> copy = std::vector<Copy>(kCount, Copy{0xffff});

  // Calls the kernel twice: first with totals that allow no update, which must change nothing.
  void run(UpdateKernel<Master, Gradient, Copy> kernel, int32_t kind, bool with_copy) {
    for (Master& x : v) x = std::fabs(x);
    p0 = p, m0 = m, v0 = v;
    const UpdateArrays<Master, Gradient, Copy> arrays{p.data(),
                                                      m.data(),
                                                      kind == YOKE_LION ? nullptr : v.data(),
                                                      g.data(),
                                                      with_copy ? copy.data() : nullptr};
    StepTotals totals{0, 0, 0, 0.37, 0};
    kernel(nullptr, kCount, step_of(kind), arrays, &totals);
    ASSERT_EQ(p, p0);
    ASSERT_EQ(m, m0);
    ASSERT_EQ(copy[0].bits, 0xffff);
    totals.update = 1;
    kernel(nullptr, kCount, step_of(kind), arrays, &totals);
    for (int64_t i = 0; with_copy && i < kCount; ++i)
      ASSERT_EQ(copy[i].bits, rounded<Copy>(static_cast<float>(p[i])).bits) << i;
  }
};

class KernelSet : public ::testing::TestWithParam<int> {
 protected:
  const Kernels& set() const { return *all_kernels().set[GetParam()]; }

  template <class Master, class Gradient, class Copy>
  void compare_adams(UpdateKernel<Master, Gradient, Copy> kernel, bool with_copy, double bound) {
    for (const int32_t kind : kAdams) {
      SCOPED_TRACE(kind);
      const bool in_gradient = kind == YOKE_ADAM || kind == YOKE_ADAM_UNCORRECTED;
      const bool corrects = kind == YOKE_ADAMW || kind == YOKE_ADAM;
      UpdateCase<Master, Gradient, Copy> c;
      c.run(kernel, kind, with_copy);
      for (int64_t i = 0; i < kCount; ++i) {
        const double p0 = c.p0[i], decay = 0.1 * p0;
        const double grad = 0.37 * widen(c.g[i]) + (in_gradient ? decay : 0);
        const double m1 = 0.9 * c.m0[i] + 0.1 * grad, v1 = 0.95 * c.v0[i] + 0.05 * grad * grad;
        const double m_hat = corrects ? m1 / (1 - std::pow(0.9, 5)) : m1;
        const double v_hat = corrects ? v1 / (1 - std::pow(0.95, 5)) : v1;
        const double kept = in_gradient ? p0 : p0 - 3e-3 * decay;
        const double p1 = kept - 3e-3 * m_hat / (std::sqrt(v_hat) + 1e-8);
        ASSERT_NEAR(c.m[i], m1, bound * (std::fabs(m1) + 1e-2)) << i;
        ASSERT_NEAR(c.v[i], v1, bound * v1) << i;
        ASSERT_NEAR(c.p[i], p1, bound * (std::fabs(p1) + 1e-2)) << i;
      }
    }
  }

  template <class Master, class Gradient, class Copy>
  void compare_lion(UpdateKernel<Master, Gradient, Copy> kernel, bool with_copy, double bound) {
    UpdateCase<Master, Gradient, Copy> c;
    c.run(kernel, YOKE_LION, with_copy);
    ASSERT_EQ(c.v, c.v0);
    for (int64_t i = 0; i < kCount; ++i) {
      const double grad = 0.37 * widen(c.g[i]), direction = 0.9 * c.m0[i] + 0.1 * grad;
      const double m1 = 0.95 * c.m0[i] + 0.05 * grad;
      const double p1 = c.p0[i] - 3e-3 * 0.1 * c.p0[i] - std::copysign(3e-3, direction);
      ASSERT_NEAR(c.m[i], m1, bound * (std::fabs(m1) + 1e-2)) << i;
      ASSERT_NEAR(c.p[i], p1, bound * (std::fabs(p1) + 1e-2)) << i;
    }
  }

  // Compares all optimizers.
  template <class Master, class Gradient, class Copy>
  void compare(UpdateKernel<Master, Gradient, Copy> kernel, bool with_copy, double bound) {
    compare_adams(kernel, with_copy, bound);
    compare_lion(kernel, with_copy, bound);
  }
};

TEST_P(KernelSet, Update) {
  compare(set().update_fp32, false, kFp32);
  compare(set().update_fp64, false, kFp64);
}

TEST_P(KernelSet, AnUpdateWritesTheRoundedWeights) {
  compare(set().update_fp32, true, kFp32);
  compare(set().update_bf16, true, kFp32);
  compare(set().update_fp16, true, kFp32);
  compare(set().update_fp32_to_fp16, true, kFp32);
}

TEST_P(KernelSet, LionLeavesAnElementWithoutADirection) {
  std::vector<double> p(kCount, 0.5), m(kCount, 0.0), g(kCount, -0.0);
  const StepTotals totals{0, 0, 0, 1, 1};
  YokeUpdate step = step_of(YOKE_LION);
  step.lion.keep = 1;
  set().update_fp64(
      nullptr, kCount, step, {p.data(), m.data(), nullptr, g.data(), nullptr}, &totals);
  EXPECT_EQ(p, std::vector<double>(kCount, 0.5));
  EXPECT_EQ(m, std::vector<double>(kCount, 0.0));
}

TEST_P(KernelSet, SquaredNormIsSummedInFp64) {
  const auto x = values<float>(5);
  const auto y = values<double>(6);
  const auto z = values<BFloat16>(7);
  const auto w = values<Float16>(15);
  double x2 = 0, y2 = 0, z2 = 0, w2 = 0;
  for (int64_t i = 0; i < kCount; ++i) {
    x2 += widen(x[i]) * widen(x[i]);
    y2 += y[i] * y[i];
    z2 += widen(z[i]) * widen(z[i]);
    w2 += widen(w[i]) * widen(w[i]);
  }
  const auto norm = [](auto kernel, int64_t count, const auto* values) {
    double sum = -1;
    kernel(nullptr, count, values, &sum);
    return sum;
  };
  EXPECT_NEAR(norm(set().squared_norm_fp32, kCount, x.data()), x2, kFp64 * x2);
  EXPECT_NEAR(norm(set().squared_norm_fp64, kCount, y.data()), y2, kFp64 * y2);
  EXPECT_NEAR(norm(set().squared_norm_bf16, kCount, z.data()), z2, kFp64 * z2);
  EXPECT_NEAR(norm(set().squared_norm_fp16, kCount, w.data()), w2, kFp64 * w2);
  EXPECT_EQ(norm(set().squared_norm_fp32, 0, x.data()), 0);
}

TEST_P(KernelSet, SumsAreRoundedOnce) {
  const auto x = values<float>(8);
  const auto y = values<BFloat16>(9);
  const auto h = values<Float16>(16);
  auto a = values<float>(10), b = a, f = a;
  auto c = values<BFloat16>(11);
  auto sum16 = values<Float16>(17);
  const auto a0 = a;
  const auto c0 = c;
  const auto h0 = sum16;
  set().add_fp32(nullptr, kAll, x.data(), a.data());
  set().add_bf16_to_fp32(nullptr, kAll, y.data(), b.data());
  set().add_bf16(nullptr, kAll, y.data(), c.data());
  set().add_fp16_to_fp32(nullptr, kAll, h.data(), f.data());
  set().add_fp16(nullptr, kAll, h.data(), sum16.data());
  auto d = values<double>(12);
  const auto d0 = d, e = values<double>(13);
  set().add_fp64(nullptr, kAll, e.data(), d.data());
  for (int64_t i = 0; i < kCount; ++i) {
    EXPECT_EQ(a[i], a0[i] + x[i]);
    EXPECT_EQ(b[i], a0[i] + static_cast<float>(widen(y[i])));
    EXPECT_EQ(c[i].bits, plain_round(static_cast<float>(widen(c0[i]) + widen(y[i]))).bits);
    EXPECT_EQ(d[i], d0[i] + e[i]);
    EXPECT_EQ(f[i], a0[i] + static_cast<float>(widen(h[i])));
    EXPECT_EQ(sum16[i].bits, rounded<Float16>(static_cast<float>(widen(h0[i]) + widen(h[i]))).bits);
  }
}

TEST_P(KernelSet, CastsRoundToTheNearestAndKeepInfinityAndNaN) {
  auto x = values<float>(14);
  const uint32_t special[] = {0x3f808000,  // halfway; the lower neighbour is even
                              0x3f818000,  // halfway; the upper neighbour is even
                              0x3f808001,
                              0x7f7fffff,
                              0x80000000,
                              0x00000001,
                              0x7f800000,
                              0xff800000,
                              0x7f800001,
                              0x7fc00000};
  std::memcpy(x.data(), special, sizeof special);
  std::vector<BFloat16> half(kCount);
  std::vector<float> back(kCount);
  std::vector<double> wide(kCount);
  std::vector<Float16> fp16(kCount);
  std::vector<float> from_fp16(kCount);
  set().fp32_to_bf16(nullptr, kAll, x.data(), half.data());
  set().bf16_to_fp32(nullptr, kAll, half.data(), back.data());
  set().fp32_to_fp64(nullptr, kAll, x.data(), wide.data());
  set().fp32_to_fp16(nullptr, kAll, x.data(), fp16.data());
  set().fp16_to_fp32(nullptr, kAll, fp16.data(), from_fp16.data());
  for (int64_t i = 0; i < kCount; ++i) {
    EXPECT_EQ(half[i].bits, plain_round(x[i]).bits) << i;
    EXPECT_EQ(fp16[i].bits, yoke_float_to_half(x[i])) << i;
    EXPECT_TRUE(std::isnan(x[i]) ? std::isnan(from_fp16[i]) : from_fp16[i] == widen(fp16[i])) << i;
    EXPECT_TRUE(std::isnan(x[i]) ? std::isnan(back[i]) && std::isnan(wide[i])
                                 : back[i] == widen(half[i]) && wide[i] == x[i])
        << i;
  }
}

TEST_P(KernelSet, HandlesRowsWithAShortLastOne) {
  const std::vector<float> from{1, 2, 3, -1, 4, 5, 6, -1, 7};
  std::vector<float> to(8, 0);
  const Rows rows{7, 3, 4, 3};
  set().copy_4(nullptr,
               rows,
               reinterpret_cast<const uint32_t*>(from.data()),
               reinterpret_cast<uint32_t*>(to.data()));
  EXPECT_EQ(to, (std::vector<float>{1, 2, 3, 4, 5, 6, 7, 0}));
  set().add_fp32(nullptr, rows, from.data(), to.data());
  EXPECT_EQ(to, (std::vector<float>{2, 4, 6, 8, 10, 12, 14, 0}));
}

TEST_P(KernelSet, DecidesAnUpdateAsTheContractRequires) {
  const double inf = std::numeric_limits<double>::infinity();
  for (const double clip : {0.0, 0.5, 1.0, 5.0}) {
    for (const double squared : {0.0, 0.25, 1.0, 9.0, inf, std::nan("")}) {
      for (const double loss_scale : {1.0, 4.0}) {
        StepTotals totals{};
        set().set_totals(nullptr, {2.5, 8, squared, 0, 0}, &totals);
        set().decide_update(nullptr, {8, clip, loss_scale}, &totals);
        const double norm = gradient_norm(squared) / loss_scale;
        EXPECT_EQ(totals.update, std::isinf(norm) ? 0 : 1) << squared;
        if (totals.update != 0) {
          EXPECT_EQ(totals.scale, clip_scale(clip, norm) / loss_scale) << clip;
        }
        EXPECT_EQ(totals.loss, 2.5);
      }
    }
  }
  StepTotals wrong{0, 8, 1, 0, 1};
  set().decide_update(nullptr, {9, 0, 1}, &wrong);
  EXPECT_EQ(wrong.update, 0);
}

INSTANTIATE_TEST_SUITE_P(OfThisMachine,
                         KernelSet,
                         ::testing::Range(0, all_kernels().count),
                         [](const auto& info) {
                           return std::string(all_kernels().set[info.param]->name);
                         });

TEST(Kernels, TheBestSetIsTheLast) {
  const KernelSets all = all_kernels();
  EXPECT_STREQ(all.set[0]->name, "baseline");
  EXPECT_EQ(&kernels(), all.set[all.count - 1]);
}

}  // namespace
}  // namespace yoke::deepspeed_stub
