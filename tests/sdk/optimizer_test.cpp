// The arithmetic of the optimizers equals the formulas of the contract to the last bit. The
// formulas are written out here independently of the functions that are tested.
#include "yoke/optimizer.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <random>
#include <string>
#include <vector>

#include "yoke/optimizer_name.hpp"

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

TEST_F(OptimizerFormula, OfAdamWAndItsVariants) {
  for (int64_t step = 1; step <= kTrials; ++step) {
    YokeOptimizer o = optimizer();
    const Element e = element();
    const double lr = number(0, 0.1);
    for (const int32_t kind :
         {YOKE_ADAMW, YOKE_ADAM, YOKE_ADAMW_UNCORRECTED, YOKE_ADAM_UNCORRECTED}) {
      const bool in_gradient = kind == YOKE_ADAM || kind == YOKE_ADAM_UNCORRECTED;
      const bool corrects = kind == YOKE_ADAMW || kind == YOKE_ADAM;
      o.kind = kind;
      for (const int decay : {0, 1}) {
        const YokeAdamW constants = yoke_adamw_step(&o, step, lr, decay);
        double m = e.moment1, v = e.moment2;
        const double value = yoke_adamw(&constants, e.value, e.gradient, &m, &v);

        const double rate = decay != 0 ? o.weight_decay : 0;
        const double g = in_gradient ? e.gradient + rate * e.value : e.gradient;
        const double expected_m = o.beta1 * e.moment1 + (1 - o.beta1) * g;
        const double expected_v = o.beta2 * e.moment2 + (1 - o.beta2) * g * g;
        const auto t = static_cast<double>(step);
        const double correct1 = corrects ? 1 - std::pow(o.beta1, t) : 1;
        const double correct2 = corrects ? std::sqrt(1 - std::pow(o.beta2, t)) : 1;
        const double change = expected_m / correct1 / (std::sqrt(expected_v) / correct2 + o.eps);
        const double keep = in_gradient ? 1 : 1 - lr * rate;
        ASSERT_EQ(m, expected_m) << kind;
        ASSERT_EQ(v, expected_v) << kind;
        ASSERT_EQ(value, keep * e.value - lr * change) << kind;
      }
    }
  }
}

TEST_F(OptimizerFormula, OfLion) {
  for (int trial = 0; trial < kTrials; ++trial) {
    YokeOptimizer o = optimizer();
    o.kind = YOKE_LION;
    const Element e = element();
    const double lr = number(0, 0.1);
    for (const int decay : {0, 1}) {
      const YokeLion constants = yoke_lion_step(&o, lr, decay);
      double m = e.moment1;
      const double value = yoke_lion(&constants, e.value, e.gradient, &m);
      const double mixed = o.beta1 * e.moment1 + (1 - o.beta1) * e.gradient;
      const double keep = decay != 0 ? 1 - lr * o.weight_decay : 1;
      ASSERT_EQ(value, keep * e.value - std::copysign(lr, mixed));
      ASSERT_EQ(m, o.beta2 * e.moment1 + (1 - o.beta2) * e.gradient);
    }
  }
}

TEST(Lion, LeavesAnElementWithoutADirection) {
  YokeOptimizer o{};
  o.beta1 = 0.9;
  o.beta2 = 0.99;
  const YokeLion constants = yoke_lion_step(&o, 0.1, 0);
  for (const double zero : {0.0, -0.0}) {
    double m = zero;
    EXPECT_EQ(yoke_lion(&constants, 0.5, zero, &m), 0.5);
    EXPECT_EQ(m, 0);
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

// ---- Kinds ----

struct Kind {
  int32_t kind;
  double momentum;
  std::vector<std::string> moments;
};
const Kind kKinds[] = {{YOKE_ADAMW, 0, {"exp_avg", "exp_avg_sq"}},
                       {YOKE_ADAM, 0.9, {"exp_avg", "exp_avg_sq"}},
                       {YOKE_ADAMW_UNCORRECTED, 0, {"exp_avg", "exp_avg_sq"}},
                       {YOKE_ADAM_UNCORRECTED, 0, {"exp_avg", "exp_avg_sq"}},
                       {YOKE_LION, 0, {"exp_avg"}},
                       {YOKE_LION, 0.9, {"exp_avg"}},
                       {YOKE_MUON, 0.9, {"exp_avg", "exp_avg_sq"}},
                       {YOKE_SGD, 0.9, {"momentum"}},
                       {YOKE_SGD, 0, {}}};

TEST(Kinds, HaveTheMomentsOfTheContract) {
  for (const Kind& k : kKinds) {
    YokeOptimizer o{};
    o.kind = k.kind;
    o.momentum = k.momentum;
    const char* kinds[2] = {"", ""};
    const auto count = static_cast<size_t>(yoke_moments(&o, kinds));
    EXPECT_EQ(std::vector<std::string>(kinds, kinds + count), k.moments) << k.kind;
    for (size_t i = count; i < 2; ++i) EXPECT_EQ(kinds[i], nullptr) << k.kind;
    EXPECT_EQ(yoke_is_muon(k.kind) != 0, k.kind == YOKE_MUON) << k.kind;
    EXPECT_EQ(yoke_is_adam(k.kind) != 0, count == 2 && k.kind != YOKE_MUON) << k.kind;
    EXPECT_EQ(yoke_is_lion(k.kind) != 0, k.kind == YOKE_LION) << k.kind;
  }
  for (const int32_t unknown : {0, 8, 99, -1}) {
    EXPECT_FALSE(yoke_is_adam(unknown));
    EXPECT_FALSE(yoke_is_lion(unknown));
    EXPECT_FALSE(yoke_is_muon(unknown));
  }
}

TEST(Kinds, HaveTheNamesOfARunFile) {
  EXPECT_EQ(yoke::optimizer_name(YOKE_SGD), "sgd");
  EXPECT_EQ(yoke::optimizer_name(YOKE_ADAMW), "adamw");
  EXPECT_EQ(yoke::optimizer_name(YOKE_ADAM), "adam");
  EXPECT_EQ(yoke::optimizer_name(YOKE_ADAMW_UNCORRECTED), "adamw without bias correction");
  EXPECT_EQ(yoke::optimizer_name(YOKE_ADAM_UNCORRECTED), "adam without bias correction");
  EXPECT_EQ(yoke::optimizer_name(YOKE_LION), "lion");
  EXPECT_EQ(yoke::optimizer_name(YOKE_MUON), "muon");
  EXPECT_EQ(yoke::optimizer_name(99), "unknown kind 99");
}

TEST_F(OptimizerFormula, OfAnyKindIsThatOfTheKind) {
  for (const Kind& k : kKinds) {
    YokeOptimizer o = optimizer();
    o.kind = k.kind;
    o.momentum = k.momentum;
    const Element e = element();
    for (const int decay : {0, 1}) {
      const YokeUpdate constants = yoke_update_step(&o, 3, 0.01, decay);
      double moments[2] = {e.moment1, e.moment2};
      const double value = yoke_update(&constants, e.value, e.gradient, moments);

      double m = e.moment1, v = e.moment2, expected = 0;
      if (k.kind == YOKE_LION) {
        const YokeLion lion = yoke_lion_step(&o, 0.01, decay);
        expected = yoke_lion(&lion, e.value, e.gradient, &m);
      } else if (k.kind == YOKE_SGD) {
        const YokeSgd sgd = yoke_sgd_step(&o, 0.01, decay);
        expected = yoke_sgd(&sgd, e.value, e.gradient, &m);
      } else {
        const YokeAdamW adamw = yoke_adamw_step(&o, 3, 0.01, decay);
        expected = yoke_adamw(&adamw, e.value, e.gradient, &m, &v);
      }
      EXPECT_EQ(value, expected) << k.kind;
      EXPECT_EQ(moments[0], m) << k.kind;
      EXPECT_EQ(moments[1], v) << k.kind;
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
