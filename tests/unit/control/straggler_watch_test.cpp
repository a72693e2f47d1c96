#include "core/control/straggler_watch.hpp"

#include <gtest/gtest.h>

#include <random>

namespace yoke {
namespace {

struct Ranks {
  std::vector<double> seconds;     // time per step of each rank
  std::vector<int64_t> pp_rank{};  // empty = 0 for all
};

// Feeds steps first .. last. A report says which step a rank is in, and how long it has computed
// for those before.
std::optional<StragglerWatch::Straggler> feed(StragglerWatch& watch,
                                              int64_t first,
                                              int64_t last,
                                              const Ranks& ranks) {
  std::optional<StragglerWatch::Straggler> found;
  for (int64_t step = first; step <= last; ++step) {
    for (size_t r = 0; r < ranks.seconds.size(); ++r) {
      const auto now = watch.take(static_cast<int32_t>(r),
                                  ranks.pp_rank.empty() ? 0 : ranks.pp_rank[r],
                                  step,
                                  static_cast<double>(step - 1) * ranks.seconds[r]);
      if (now) found = now;
    }
  }
  return found;
}

TEST(StragglerWatch, NamesASlowRankTwentyStepsAfterTheWarmup) {
  for (const std::vector<double>& seconds :
       {std::vector<double>{1, 1.6}, {2, 1, 1}, {1, 1, 1, 3}}) {
    StragglerWatch watch(static_cast<int32_t>(seconds.size()));
    EXPECT_FALSE(feed(watch, 0, 25, {seconds}));
    const auto found = feed(watch, 26, 26, {seconds});
    ASSERT_TRUE(found);
    const auto slow = std::max_element(seconds.begin(), seconds.end());
    EXPECT_EQ(found->rank, slow - seconds.begin());
    EXPECT_NEAR(found->factor, *slow, 1e-9);
    EXPECT_EQ(found->since, 6);
  }
}

TEST(StragglerWatch, IsSilentBelowTheFactor) {
  StragglerWatch watch(3);
  EXPECT_FALSE(feed(watch, 1, 1000, {{1, 1.45, 0.9}}));
}

TEST(StragglerWatch, IgnoresASlowWindow) {
  StragglerWatch watch(2);
  EXPECT_FALSE(feed(watch, 1, 16, {{1, 2}}));
  // take() gets totals: the second rank's next steps are as fast as the first one's.
  for (int64_t step = 17; step <= 46; ++step) {
    EXPECT_FALSE(watch.take(0, 0, step, static_cast<double>(step - 1)));
    EXPECT_FALSE(watch.take(1, 0, step, static_cast<double>(step - 1) + 15));
  }
}

TEST(StragglerWatch, AcceptsReportsThatSkipSteps) {
  StragglerWatch watch(2);
  for (const int64_t step : {1, 36, 71}) {
    EXPECT_FALSE(watch.take(0, 0, step, static_cast<double>(step)));
    EXPECT_FALSE(watch.take(1, 0, step + 1, static_cast<double>(2 * step)));
  }
  EXPECT_FALSE(watch.take(0, 0, 106, 106));
  const auto found = watch.take(1, 0, 107, 212);
  ASSERT_TRUE(found);
  EXPECT_EQ(found->rank, 1);
}

// The last stage has the head, which takes as long as several blocks.
TEST(StragglerWatch, ComparesOnlyRanksOfOnePipelineStage) {
  const std::vector<int64_t> stages{0, 0, 0, 1, 1, 1};
  StragglerWatch even(6);
  EXPECT_FALSE(feed(even, 1, 200, {{1, 1, 1, 3, 3, 3}, stages}));
  StragglerWatch alone(2);
  EXPECT_FALSE(feed(alone, 1, 200, {{1, 3}, {0, 1}}));
  // A rank of the first stage is slow, but still not slower than those of the last one.
  StragglerWatch uneven(6);
  const auto found = feed(uneven, 1, 26, {{1, 2, 1, 3, 3, 3}, stages});
  ASSERT_TRUE(found);
  EXPECT_EQ(found->rank, 1);
  EXPECT_NEAR(found->factor, 2, 1e-9);
}

// The first step of rank 1 takes long, as does its tenth one, by chance. A resumed run is no
// different.
TEST(StragglerWatch, LeavesOutTheFirstStepsOfEachAttempt) {
  for (const int64_t done : {0, 1000}) {
    StragglerWatch watch(3);
    double seconds = 0;
    for (int64_t step = 1; step <= 100; ++step) {
      for (const int32_t r : {0, 2})
        EXPECT_FALSE(watch.take(r, 0, done + step, static_cast<double>(step - 1)));
      EXPECT_FALSE(watch.take(1, 0, done + step, seconds)) << done << " + " << step;
      seconds += step == 1 || step == 12 ? 30 : 1;
    }
  }
}

// With the first steps of a resumed run in the window, their number would hide how slow a rank is.
TEST(StragglerWatch, NamesTheStepsOfAResumedRun) {
  StragglerWatch watch(2);
  EXPECT_FALSE(feed(watch, 1001, 1025, {{1, 2}}));
  const auto found = feed(watch, 1026, 1026, {{1, 2}});
  ASSERT_TRUE(found);
  EXPECT_EQ(found->since, 1006);
  EXPECT_NEAR(found->factor, 2, 1e-9);
}

// Random times that differ by up to a third.
TEST(StragglerWatch, RaisesNoFalseAlarm) {
  std::mt19937 random(3);
  std::uniform_real_distribution<double> time(0.9, 1.35);
  StragglerWatch watch(4);
  double total[4] = {};
  for (int64_t step = 1; step <= 20000; ++step) {
    for (int r = 0; r < 4; ++r) {
      total[r] += time(random);
      EXPECT_FALSE(watch.take(r, 0, step, total[r]));
    }
  }
}

}  // namespace
}  // namespace yoke
