#include "core/run/skipped_steps.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <limits>

#include "yoke/error.hpp"

namespace yoke {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

constexpr double kInfinity = std::numeric_limits<double>::infinity();

YokeStepResult result(double loss, double norm, double scale, bool skipped) {
  YokeStepResult r{};
  r.header = YOKE_HEADER(YokeStepResult, YOKE_ID_STEP_RESULT);
  r.loss_sum = loss;
  r.loss_weight = 1;
  r.grad_norm = norm;
  r.loss_scale = scale;
  r.skipped = skipped ? 1 : 0;
  return r;
}
YokeStepResult good(double scale) {
  return result(2, 1, scale, false);
}
YokeStepResult overflow(double scale) {
  return result(2, kInfinity, scale, true);
}

RunConfig fp16() {
  RunConfig run;
  run.precision.param = "fp16";
  run.loss_scale.hysteresis = 1;
  return run;
}

template <class F>
std::string error_of(F&& f, int32_t code = YOKE_DATA_LOSS) {
  try {
    f();
  } catch (const Error& e) {
    EXPECT_EQ(e.code(), code);
    return e.what();
  }
  ADD_FAILURE() << "nothing was thrown";
  return "";
}

LogOptions silent() {
  LogOptions options;
  options.console = false;
  return options;
}

class SkippedStepsTest : public ::testing::Test {
 protected:
  Log log_{silent()};
};

TEST_F(SkippedStepsTest, HalvesTheScaleAndCounts) {
  SkippedSteps skipped(fp16(), 1, log_);
  EXPECT_EQ(skipped.loss_scale(), 65536);
  EXPECT_TRUE(skipped.after(1, overflow(65536)));
  EXPECT_EQ(skipped.loss_scale(), 32768);
  EXPECT_FALSE(skipped.after(1, good(32768)));
  EXPECT_EQ(skipped.total(), 1);
}

// A backend of version 1.0 has no field for skipped steps, and one may not know the norm.
TEST_F(SkippedStepsTest, ANormOrTheFlagMeansThatAStepWasSkipped) {
  const double unknown = std::numeric_limits<double>::quiet_NaN();
  EXPECT_TRUE(is_skipped(result(2, kInfinity, 0, false)));
  EXPECT_TRUE(is_skipped(result(2, unknown, 0, true)));
  EXPECT_FALSE(is_skipped(result(2, unknown, 0, false)));
}

TEST_F(SkippedStepsTest, EndsARunWithoutALossScaleAtTheFirstOverflow) {
  SkippedSteps skipped(RunConfig(), 1, log_);
  EXPECT_EQ(skipped.loss_scale(), 0);
  EXPECT_THAT(error_of([&] { skipped.after(3, overflow(0)); }),
              AllOf(HasSubstr("step 3: loss 2, grad_norm inf"), HasSubstr("must be finite")));
  EXPECT_THAT(error_of([&] { skipped.after(4, result(kInfinity, 1, 0, false)); }),
              HasSubstr("step 4: loss inf"));
}

TEST_F(SkippedStepsTest, SkipsInAnyPrecisionIfTheRunAllowsIt) {
  RunConfig run;
  run.train.max_skipped = 2;
  SkippedSteps skipped(run, 1, log_);
  EXPECT_TRUE(skipped.after(3, overflow(0)));
  EXPECT_TRUE(skipped.after(3, overflow(0)));
  EXPECT_FALSE(skipped.after(3, good(0)));
  EXPECT_TRUE(skipped.after(4, overflow(0))) << "only steps in a row count";
  EXPECT_TRUE(skipped.after(4, overflow(0)));
  EXPECT_THAT(
      error_of([&] { skipped.after(4, overflow(0)); }),
      AllOf(HasSubstr("train.max_skipped = 2"), HasSubstr("overflowed: 3 (2 times), 4 (3 times)")));
  CheckpointInfo info;
  skipped.save(info);
  EXPECT_FALSE(info.loss_scale.has_value());
}

TEST_F(SkippedStepsTest, NamesTheStepsThatOverflowedAtTheMinimum) {
  RunConfig run = fp16();
  run.loss_scale.initial_power = 1;
  SkippedSteps skipped(run, 1, log_);
  EXPECT_TRUE(skipped.after(5, overflow(2)));
  EXPECT_FALSE(skipped.after(5, good(1)));
  EXPECT_THAT(error_of([&] { skipped.after(6, overflow(1)); }),
              AllOf(HasSubstr("loss_scale.min = 1"), HasSubstr("overflowed: 5, 6")));
}

TEST_F(SkippedStepsTest, SkipsStepsAtTheMinimumByTheRuleOfFp16Optimizer) {
  RunConfig run = fp16();
  run.loss_scale.rule = "fp16_optimizer";
  run.loss_scale.initial_power = 0;
  run.train.max_skipped = 3;
  SkippedSteps skipped(run, 1, log_);
  for (int i = 0; i < 3; ++i) EXPECT_TRUE(skipped.after(5, overflow(1)));
  EXPECT_FALSE(skipped.after(5, good(1)));
  for (int i = 0; i < 3; ++i) EXPECT_TRUE(skipped.after(6, overflow(1)));
  EXPECT_THAT(error_of([&] { skipped.after(6, overflow(1)); }), HasSubstr("train.max_skipped = 3"));
}

TEST_F(SkippedStepsTest, ABackendMustUseTheScaleThatItIsGiven) {
  SkippedSteps skipped(fp16(), 1, log_);
  EXPECT_THAT(error_of([&] { skipped.after(1, good(0)); }, YOKE_INTERNAL),
              AllOf(HasSubstr("used the loss scale 0"), HasSubstr("given 65536")));
}

TEST_F(SkippedStepsTest, ContinuesFromACheckpoint) {
  SkippedSteps first(fp16(), 1, log_), second(fp16(), 1, log_), third(fp16(), 1, log_);
  EXPECT_TRUE(first.after(1, overflow(65536)));
  CheckpointInfo info;
  first.save(info);
  EXPECT_EQ(info.skipped, 1);
  second.restore(info);
  EXPECT_EQ(second.loss_scale(), 32768);
  EXPECT_EQ(second.total(), 1);
  info.loss_scale.reset();  // that of a bf16 run
  third.restore(info);
  EXPECT_EQ(third.loss_scale(), 65536);
  EXPECT_TRUE(third.after(2, overflow(65536)));
  third.save(info);
  EXPECT_EQ(info.loss_scale->skipped, 2);
}

TEST_F(SkippedStepsTest, AreCountedFromTheStartOfARunWithoutALossScale) {
  RunConfig run;
  run.train.max_skipped = 2;
  SkippedSteps first(run, 1, log_), second(run, 1, log_);
  EXPECT_TRUE(first.after(1, overflow(0)));
  CheckpointInfo info;
  first.save(info);
  EXPECT_FALSE(info.loss_scale.has_value());
  second.restore(info);
  EXPECT_TRUE(second.after(2, overflow(0)));
  EXPECT_EQ(second.total(), 2);
}

}  // namespace
}  // namespace yoke
