// DeepSpeed's rule is compared with a plain version that counts as DeepSpeed does: iterations and
// the number of the last one that overflowed. tests/oracle compares with the programs themselves.
#include "core/run/loss_scaler.hpp"

#include <gtest/gtest.h>
#include <rapidcheck/gtest.h>

#include <cmath>
#include <vector>

namespace yoke {
namespace {

// DeepSpeed's way of counting.
struct Iterations {
  explicit Iterations(const LossScaleConfig& c)
      : config(c),
        scale(std::ldexp(1, static_cast<int>(c.initial_power))),
        hysteresis(c.hysteresis) {
    if (c.rule == "fp16_optimizer") config.hysteresis = hysteresis = 1;
  }

  // Returns false where DeepSpeed ends the run.
  bool update(bool overflowed) {
    if (overflowed) {
      if (config.hysteresis == 1 || hysteresis == 1) {
        // At ZeRO stage 0 DeepSpeed has no hysteresis and never ends the run.
        if (scale == config.min && config.rule == "deepspeed") return false;
        scale = std::max(scale / 2, config.min);
      } else {
        --hysteresis;
      }
      last_overflow = iteration;
    } else {
      if (config.consecutive_hysteresis) hysteresis = config.hysteresis;
      const int64_t stable = iteration - last_overflow - 1;
      if (stable > 0 && stable % config.window == 0) {
        if (!config.consecutive_hysteresis) hysteresis = config.hysteresis;
        scale *= 2;
      }
    }
    ++iteration;
    return true;
  }

  LossScaleConfig config;
  double scale;
  int64_t hysteresis, iteration = 0, last_overflow = -1;
};

LossScaleConfig any_config() {
  LossScaleConfig c;
  c.initial_power = *rc::gen::inRange(0, 30);
  c.window = *rc::gen::inRange(1, 8);
  c.hysteresis = *rc::gen::inRange(1, 5);
  c.consecutive_hysteresis = *rc::gen::arbitrary<bool>();
  c.min = *rc::gen::element(0.0, 0.25, 1.0);
  c.rule = *rc::gen::element(
      std::string("deepspeed"), std::string("fp16_optimizer"), std::string("grad_scaler"));
  return c;
}

RC_GTEST_PROP(LossScaler, CountsAsDeepSpeedDoes, ()) {
  LossScaleConfig config = any_config();
  config.rule = *rc::gen::element(std::string("deepspeed"), std::string("fp16_optimizer"));
  LossScaler scaler(config);
  Iterations expected(config);
  int64_t skipped = 0;
  for (const bool overflowed : *rc::gen::container<std::vector<bool>>(rc::gen::arbitrary<bool>())) {
    RC_ASSERT(scaler.scale() == expected.scale);
    const bool goes_on = expected.update(overflowed);
    RC_ASSERT(scaler.update(overflowed) == goes_on);
    if (!goes_on) return;
    skipped += overflowed ? 1 : 0;
    RC_ASSERT(scaler.state().skipped == skipped);
  }
  RC_ASSERT(scaler.scale() == expected.scale);
}

// A run that stops anywhere and resumes has the scales of an uninterrupted one.
RC_GTEST_PROP(LossScaler, ContinuesFromItsState, ()) {
  const LossScaleConfig config = any_config();
  const auto overflows = *rc::gen::container<std::vector<bool>>(rc::gen::arbitrary<bool>());
  const size_t stop = *rc::gen::inRange<size_t>(0, overflows.size() + 1);
  LossScaler whole(config), first(config), second(config);
  for (size_t i = 0; i < overflows.size(); ++i) {
    if (i == stop) second.restore(first.state());
    LossScaler& part = i < stop ? first : second;
    const bool goes_on = whole.update(overflows[i]);
    RC_ASSERT(part.update(overflows[i]) == goes_on);
    if (!goes_on) return;
    RC_ASSERT(part.state() == whole.state());
  }
}

TEST(LossScaler, FallsWithEveryOverflowAsGradScalerDoes) {
  LossScaleConfig config;
  config.rule = "grad_scaler";
  config.window = 3;
  LossScaler scaler(config);
  EXPECT_EQ(scaler.scale(), 65536);
  for (double scale = 65536; scale > 0x1p-20; scale /= 2) {
    EXPECT_EQ(scaler.scale(), scale);
    ASSERT_TRUE(scaler.update(true));
  }
  for (int i = 0; i < 7; ++i) {
    EXPECT_EQ(scaler.scale(), i < 3 ? 0x1p-20 : i < 6 ? 0x1p-19 : 0x1p-18) << i;
    ASSERT_TRUE(scaler.update(false));
  }
}

TEST(LossScaler, ToleratesTheFirstOverflowWithHysteresisTwo) {
  LossScaler scaler{LossScaleConfig()};
  ASSERT_TRUE(scaler.update(true));
  EXPECT_EQ(scaler.scale(), 65536);
  ASSERT_TRUE(scaler.update(true));
  EXPECT_EQ(scaler.scale(), 32768);
  ASSERT_TRUE(scaler.update(true));
  EXPECT_EQ(scaler.scale(), 16384) << "the tolerance comes back only when the scale grows";
}

TEST(LossScaler, EndsTheRunAtItsMinimum) {
  LossScaleConfig config;
  config.initial_power = 1;
  config.hysteresis = 1;
  LossScaler scaler(config);
  ASSERT_TRUE(scaler.update(true));
  EXPECT_EQ(scaler.scale(), 1);
  const LossScaleState before = scaler.state();
  EXPECT_FALSE(scaler.update(true));
  EXPECT_EQ(scaler.state(), before);
}

TEST(LossScaler, StaysAtItsMinimumAsFp16OptimizerDoes) {
  LossScaleConfig config;
  config.rule = "fp16_optimizer";
  config.initial_power = 2;
  config.min = 1.5;
  config.window = 2;
  LossScaler scaler(config);
  for (const double scale : {4.0, 2.0, 1.5, 1.5, 1.5}) {
    EXPECT_EQ(scaler.scale(), scale);
    ASSERT_TRUE(scaler.update(true));
  }
  for (int i = 0; i < 4; ++i) {
    EXPECT_EQ(scaler.scale(), i < 3 ? 1.5 : 3) << i;
    ASSERT_TRUE(scaler.update(false));
  }
}

TEST(LossScaler, NeverGrowsToInfinity) {
  LossScaleConfig config;
  config.window = 1;
  LossScaler scaler(config);
  for (int i = 0; i < 2000; ++i) ASSERT_TRUE(scaler.update(false));
  EXPECT_TRUE(std::isfinite(static_cast<float>(scaler.scale())));
}

TEST(LossScaler, KeepsAStaticScale) {
  LossScaleConfig config;
  config.fixed = 1000;
  LossScaler scaler(config);
  for (int i = 0; i < 5; ++i) ASSERT_TRUE(scaler.update(i % 2 == 0));
  EXPECT_EQ(scaler.scale(), 1000);
  EXPECT_EQ(scaler.state().skipped, 3);
  scaler.restore({.scale = 8, .good_steps = 1, .hysteresis = 1, .skipped = 7});
  EXPECT_EQ(scaler.scale(), 1000) << "the run file decides";
  EXPECT_EQ(scaler.state().skipped, 7);
}

}  // namespace
}  // namespace yoke
