// The arithmetic of the optimizers equals the formulas of the contract to the last bit. The
// formulas are written out here independently of the functions that are tested.
#include "yoke/optimizer.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <random>
#include <vector>

namespace {

constexpr double kInfinity = std::numeric_limits<double>::infinity();
constexpr double kNan = std::numeric_limits<double>::quiet_NaN();
constexpr int kTrials = 10'000;

struct Element {
  double value, gradient, moment1, moment2;
};

class OptimizerFormula : public ::testing::Test {
 protected:
  double number(double low, double high) {
    return std::uniform_real_distribution<double>(low, high)(random_);
  }
  YokeOptimizer optimizer() {
    YokeOptimizer o{};
    o.beta1 = number(0.5, 0.999);
    o.beta2 = number(0.5, 0.9999);
    o.eps = number(1e-10, 1e-6);
    o.momentum = number(0, 1);
    o.weight_decay = number(0, 0.5);
    return o;
  }
  Element element() { return {number(-2, 2), number(-1, 1), number(-1, 1), number(0, 1)}; }

 private:
  std::mt19937_64 random_{7};
};

TEST_F(OptimizerFormula, OfAdamW) {
  for (int64_t step = 1; step <= kTrials; ++step) {
    const YokeOptimizer o = optimizer();
    const Element e = element();
    const double lr = number(0, 0.1);
    for (const int decay : {0, 1}) {
      const YokeAdamW constants = yoke_adamw_step(&o, step, lr, decay);
      double m = e.moment1, v = e.moment2;
      const double value = yoke_adamw(&constants, e.value, e.gradient, &m, &v);

      const double expected_m = o.beta1 * e.moment1 + (1 - o.beta1) * e.gradient;
      const double expected_v = o.beta2 * e.moment2 + (1 - o.beta2) * e.gradient * e.gradient;
      const double correct1 = 1 - std::pow(o.beta1, static_cast<double>(step));
      const double correct2 = std::sqrt(1 - std::pow(o.beta2, static_cast<double>(step)));
      const double change = expected_m / correct1 / (std::sqrt(expected_v) / correct2 + o.eps);
      const double keep = decay != 0 ? 1 - lr * o.weight_decay : 1;
      ASSERT_EQ(m, expected_m);
      ASSERT_EQ(v, expected_v);
      ASSERT_EQ(value, keep * e.value - lr * change);
    }
  }
}

TEST_F(OptimizerFormula, OfSgd) {
  for (int trial = 0; trial < kTrials; ++trial) {
    YokeOptimizer o = optimizer();
    const Element e = element();
    const double lr = number(0, 0.1);
    for (const int decay : {0, 1}) {
      const double keep = decay != 0 ? 1 - lr * o.weight_decay : 1;
      const YokeSgd constants = yoke_sgd_step(&o, lr, decay);
      double buffer = e.moment1, ahead = e.moment1;
      const double expected_buffer = o.momentum * e.moment1 + e.gradient;
      ASSERT_EQ(yoke_sgd(&constants, e.value, e.gradient, &buffer),
                keep * e.value - lr * expected_buffer);
      ASSERT_EQ(buffer, expected_buffer);
      ASSERT_EQ(yoke_nesterov(&constants, e.value, e.gradient, &ahead),
                keep * e.value - lr * (e.gradient + o.momentum * expected_buffer));
      ASSERT_EQ(ahead, expected_buffer);

      YokeSgd plain = constants;
      plain.momentum = 0;
      ASSERT_EQ(yoke_sgd(&plain, e.value, e.gradient, nullptr), keep * e.value - lr * e.gradient);
    }
  }
}

TEST(GradientNorm, IsInfiniteUnlessItIsFinite) {
  EXPECT_EQ(yoke_gradient_norm(9), 3);
  EXPECT_EQ(yoke_gradient_norm(0), 0);
  EXPECT_EQ(yoke_gradient_norm(kInfinity), kInfinity);
  EXPECT_EQ(yoke_gradient_norm(kNan), kInfinity);
}

TEST(ClipScale, IsTheMinimumOfOneAndTheQuotient) {
  std::vector<double> values{0, 1e-300, 1e-6, 0.5, 1 - 1e-6, 1, 1 + 1e-6, 4, 1e300, kInfinity};
  for (double near = 1 - 1e-6; near < 1 - 1e-6 + 1e-15; near = std::nextafter(near, 2))
    values.push_back(near);
  for (const double clip : values) {
    for (const double norm : values) {
      const double expected = clip > 0 ? std::fmin(1, clip / (norm + 1e-6)) : 1;
      ASSERT_EQ(yoke_clip_scale(clip, norm), expected) << "clip " << clip << ", norm " << norm;
    }
  }
}

}  // namespace
