#include "core/run/learning_rate.hpp"

#include <gtest/gtest.h>

#include <vector>

#include "yoke/error.hpp"

namespace yoke {
namespace {

TrainConfig train(const std::string& schedule, int64_t steps, int64_t warmup) {
  TrainConfig config;
  config.lr = 2.0;
  config.steps = steps;
  config.warmup = warmup;
  config.lr_schedule = schedule;
  return config;
}

TEST(LearningRate, RisesLinearlyOverTheWarmup) {
  for (const char* schedule : {"constant", "linear", "cosine", "wsd"}) {
    const TrainConfig config = train(schedule, 100, 4);
    EXPECT_DOUBLE_EQ(learning_rate(config, 1), 0.5) << schedule;
    EXPECT_DOUBLE_EQ(learning_rate(config, 3), 1.5) << schedule;
    EXPECT_DOUBLE_EQ(learning_rate(config, 4), 2.0) << schedule;
    EXPECT_DOUBLE_EQ(learning_rate(config, 5), 2.0) << schedule;
  }
}

TEST(LearningRate, StaysWhereItIsWhenConstant) {
  EXPECT_EQ(learning_rate(train("constant", 10, 0), 1), 2.0);
  EXPECT_EQ(learning_rate(train("constant", 10, 0), 10), 2.0);
}

TEST(LearningRate, FallsLinearlyTowardsZeroBehindTheLastStep) {
  const TrainConfig config = train("linear", 12, 2);
  EXPECT_DOUBLE_EQ(learning_rate(config, 4), 2.0 * 0.9);
  EXPECT_DOUBLE_EQ(learning_rate(config, 8), 2.0 * 0.5);
  EXPECT_NEAR(learning_rate(config, 12), 2.0 * 0.1, 1e-15);
  EXPECT_DOUBLE_EQ(learning_rate(config, 13), 0.0);
}

TEST(LearningRate, FollowsHalfACosineTowardsItsFloor) {
  TrainConfig config = train("cosine", 12, 2);
  EXPECT_DOUBLE_EQ(learning_rate(config, 8), 2.0 * 0.5);
  EXPECT_DOUBLE_EQ(learning_rate(config, 13), 0);
  config.min_lr_factor = 0.1;
  EXPECT_DOUBLE_EQ(learning_rate(config, 3), 2.0);
  EXPECT_DOUBLE_EQ(learning_rate(config, 8), 2.0 * 0.55);  // cos(pi / 2) = 0
  EXPECT_DOUBLE_EQ(learning_rate(config, 13), 0.2);
  EXPECT_DOUBLE_EQ(learning_rate(config, 1000), 0.2);
  EXPECT_GT(learning_rate(config, 12), 0.2);
}

TEST(LearningRate, DecaysOnlyInTheLastFifthForWsd) {
  const TrainConfig config = train("wsd", 50, 5);
  EXPECT_DOUBLE_EQ(learning_rate(config, 41), 2.0);
  EXPECT_DOUBLE_EQ(learning_rate(config, 42), 2.0 * 0.9);
  EXPECT_NEAR(learning_rate(config, 50), 2.0 * 0.1, 1e-15);
}

TEST(LearningRate, NeverRisesAfterTheWarmupAndIsNeverZeroInTheRun) {
  for (const char* schedule : {"constant", "linear", "cosine", "wsd"}) {
    for (const int64_t warmup : {0, 1, 7, 19, 20}) {
      const TrainConfig config = train(schedule, 20, warmup);
      for (int64_t step = 1; step <= 20; ++step) {
        EXPECT_GT(learning_rate(config, step), 0) << schedule << " " << warmup << " " << step;
        if (step <= warmup + 1) continue;
        EXPECT_LE(learning_rate(config, step), learning_rate(config, step - 1))
            << schedule << " " << step;
      }
    }
  }
}

TEST(LearningRate, NamesTheAllowedSchedules) {
  try {
    learning_rate(train("cosin", 10, 0), 1);
    FAIL();
  } catch (const Error& e) {
    EXPECT_EQ(e.code(), YOKE_INVALID_ARGUMENT);
    EXPECT_STREQ(e.what(),
                 "train.schedule = 'cosin'; allowed are constant, linear, cosine and wsd");
  }
  EXPECT_THROW(learning_rate(train("linear", 10, 0), 0), Error);
}

}  // namespace
}  // namespace yoke
