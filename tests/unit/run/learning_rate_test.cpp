#include "core/run/learning_rate.hpp"

#include <gtest/gtest.h>

#include <cmath>
#include <vector>

#include "core/config/lr_schedules.hpp"
#include "core/config/schema.hpp"
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

double rate(const TrainConfig& train, int64_t step) {
  return learning_rate(train, LrScheduleConfig(), step);
}

TEST(LearningRate, RisesLinearlyOverTheWarmup) {
  for (const char* schedule : {"constant", "linear", "cosine", "wsd"}) {
    const TrainConfig config = train(schedule, 100, 4);
    EXPECT_DOUBLE_EQ(rate(config, 1), 0.5) << schedule;
    EXPECT_DOUBLE_EQ(rate(config, 3), 1.5) << schedule;
    EXPECT_DOUBLE_EQ(rate(config, 4), 2.0) << schedule;
    EXPECT_DOUBLE_EQ(rate(config, 5), 2.0) << schedule;
  }
}

TEST(LearningRate, StaysWhereItIsWhenConstant) {
  EXPECT_EQ(rate(train("constant", 10, 0), 1), 2.0);
  EXPECT_EQ(rate(train("constant", 10, 0), 10), 2.0);
}

TEST(LearningRate, FallsLinearlyTowardsZeroBehindTheLastStep) {
  const TrainConfig config = train("linear", 12, 2);
  EXPECT_DOUBLE_EQ(rate(config, 4), 2.0 * 0.9);
  EXPECT_DOUBLE_EQ(rate(config, 8), 2.0 * 0.5);
  EXPECT_NEAR(rate(config, 12), 2.0 * 0.1, 1e-15);
  EXPECT_DOUBLE_EQ(rate(config, 13), 0.0);
}

TEST(LearningRate, FollowsHalfACosineTowardsItsFloor) {
  TrainConfig config = train("cosine", 12, 2);
  EXPECT_DOUBLE_EQ(rate(config, 8), 2.0 * 0.5);
  EXPECT_DOUBLE_EQ(rate(config, 13), 0);
  config.min_lr_factor = 0.1;
  EXPECT_DOUBLE_EQ(rate(config, 3), 2.0);
  EXPECT_DOUBLE_EQ(rate(config, 8), 2.0 * 0.55);  // cos(pi / 2) = 0
  EXPECT_DOUBLE_EQ(rate(config, 13), 0.2);
  EXPECT_DOUBLE_EQ(rate(config, 1000), 0.2);
  EXPECT_GT(rate(config, 12), 0.2);
}

TEST(LearningRate, DecaysOnlyInTheLastFifthForWsd) {
  const TrainConfig config = train("wsd", 50, 5);
  EXPECT_DOUBLE_EQ(rate(config, 41), 2.0);
  EXPECT_DOUBLE_EQ(rate(config, 42), 2.0 * 0.9);
  EXPECT_NEAR(rate(config, 50), 2.0 * 0.1, 1e-15);
}

TEST(LearningRate, WsdNeverDecaysBeforeTheEndOfTheWarmup) {
  LrScheduleConfig schedule;
  schedule.decay_steps = 18;
  const TrainConfig config = train("wsd", 20, 10);
  EXPECT_DOUBLE_EQ(learning_rate(config, schedule, 11), 2.0);
  EXPECT_DOUBLE_EQ(learning_rate(config, schedule, 12), 2.0 * 0.9);  // 10 steps are left
}

TEST(LearningRate, InverseSqrtHasATimescaleOf10000StepsWithoutAWarmup) {
  EXPECT_DOUBLE_EQ(rate(train("inverse_sqrt", 20000, 0), 10001), 2.0 / std::sqrt(2.0));
}

TEST(LearningRate, DeepSpeedWarmsUpForTwoStepsAtLeast) {
  for (const int64_t warmup : {0, 1, 2}) {
    const TrainConfig config = train("WarmupLR", 10, warmup);
    LrScheduleConfig schedule;
    schedule.warmup_shape = "linear";
    schedule.start_factor = 0.5;
    EXPECT_DOUBLE_EQ(learning_rate(config, schedule, 2), 1.0) << warmup;
    EXPECT_DOUBLE_EQ(learning_rate(config, schedule, 3), 1.5) << warmup;
    EXPECT_DOUBLE_EQ(learning_rate(config, schedule, 4), 2.0) << warmup;
  }
}

TEST(LearningRate, NeverRisesAfterTheWarmupAndIsNeverZeroInTheRun) {
  for (const char* schedule : {"constant", "linear", "cosine", "wsd"}) {
    for (const int64_t warmup : {0, 1, 7, 19, 20}) {
      const TrainConfig config = train(schedule, 20, warmup);
      for (int64_t step = 1; step <= 20; ++step) {
        EXPECT_GT(rate(config, step), 0) << schedule << " " << warmup << " " << step;
        if (step <= warmup + 1) continue;
        EXPECT_LE(rate(config, step), rate(config, step - 1)) << schedule << " " << step;
      }
    }
  }
}

TEST(LearningRate, EveryScheduleThatAKeyMayNameHasAFormula) {
  for (const std::string& name : choices(*find_key("train.schedule"))) {
    EXPECT_NE(find_lr_schedule(name), nullptr) << name;
    EXPECT_NO_THROW(rate(train(name, 10, 2), 3)) << name;
  }
  EXPECT_EQ(lr_schedules().size(), choices(*find_key("train.schedule")).size());
}

// The factors of a few steps, computed by hand from the formulas in the header. A test in
// tests/oracle compares whole runs with the programs that the formulas come from.
struct Point {
  const char* schedule;
  LrScheduleConfig lr;
  int64_t step;
  double factor;
};

TEST(LearningRate, FollowsThePublishedFormulas) {
  constexpr int64_t kSteps = 20, kWarmup = 4;
  const Point points[] = {
      {"cosine", {.first_step = 0}, 1, 0},
      {"cosine", {.first_step = 0, .start_factor = 0.2}, 3, 0.6},
      {"cosine", {.cycles = 1}, 13, 0},           // p = 1/2
      {"cosine", {.total_steps = 12}, 9, 0.5},    // p = 1/2
      {"cosine_restarts", {.cycles = 2}, 13, 1},  // the second fall begins
      {"cosine_restarts", {.cycles = 2}, 9, 0.5},
      {"cosine_restarts", {.cycles = 2}, 21, 0},
      {"polynomial", {.power = 2}, 13, 0.25},
      {"inverse_sqrt", {}, 17, 0.5},  // 12 steps after a warmup of 4
      {"inverse_sqrt", {.timescale = 12}, 17, 1 / std::sqrt(2)},
      {"wsd", {.decay_steps = 8}, 12, 1},
      {"wsd", {.decay_steps = 8}, 15, 0.75},
      {"wsd", {.decay_steps = 8, .decay_shape = "sqrt"}, 15, 0.5},
      {"wsd", {.decay_steps = 8, .decay_shape = "cosine"}, 17, 0.5},
      {"wsd", {.decay_steps = 8, .decay_shape = "exponential"}, 17, 2 * std::sqrt(0.5) - 1},
      {"WarmupLR", {}, 1, 0},
      {"WarmupLR", {}, 2, 0},
      {"WarmupLR", {}, 4, 0.5},
      {"WarmupLR", {.warmup_shape = "log"}, 3, 0.5},  // log 2 / log 4
      {"WarmupLR", {.start_factor = 0.5}, 4, 0.75},
      {"WarmupLR", {}, 6, 1},
      {"WarmupDecayLR", {}, 6, 1},
      {"WarmupDecayLR", {.start_factor = 0.5}, 14, 0.75},
      {"WarmupDecayLR", {.total_steps = 12}, 14, 0},
      {"WarmupCosineLR", {.start_factor = 0.5}, 1, 0},
      {"WarmupCosineLR", {.start_factor = 0.5}, 2, 0.5},
      {"WarmupCosineLR", {}, 13, 0.5},  // p = 8 / 16
      {"OneCycle", {.start_factor = 0.2, .rise_steps = 4, .fall_steps = 8}, 3, 0.6},
      {"OneCycle", {.start_factor = 0.2, .rise_steps = 4, .fall_steps = 8}, 9, 0.6},
      {"OneCycle", {.rise_steps = 4, .rise_stairs = 2}, 2, 0},
      {"OneCycle", {.rise_steps = 4, .rise_stairs = 2}, 4, 0.5},
      {"OneCycle", {.rise_steps = 4, .fall_stairs = 2}, 7, 0.5},
      {"OneCycle", {.start_factor = 0.2, .rise_steps = 4}, 18, 0.2},
      {"OneCycle",
       {.start_factor = 0.2, .rise_steps = 4, .tail_steps = 3, .tail_rate = 0.5},
       15,
       0.1},
      {"LRRangeTest", {.range_steps = 4, .range_rate = 2}, 3, 2},
      {"LRRangeTest", {.range_steps = 4, .range_rate = 2, .staircase = true}, 4, 1},
  };
  for (const Point& p : points) {
    EXPECT_NEAR(
        learning_rate(train(p.schedule, kSteps, kWarmup), p.lr, p.step), 2 * p.factor, 1e-15)
        << p.schedule << " " << p.step;
  }
}

TEST(LearningRate, NamesTheAllowedSchedules) {
  try {
    rate(train("cosin", 10, 0), 1);
    FAIL();
  } catch (const Error& e) {
    EXPECT_EQ(e.code(), YOKE_INVALID_ARGUMENT);
    EXPECT_STREQ(e.what(),
                 "train.schedule = 'cosin'; allowed: LRRangeTest, OneCycle, WarmupCosineLR, "
                 "WarmupDecayLR, WarmupLR, constant, cosine, cosine_restarts, inverse_sqrt, "
                 "linear, polynomial, wsd");
  }
  EXPECT_THROW(rate(train("linear", 10, 0), 0), Error);
}

}  // namespace
}  // namespace yoke
