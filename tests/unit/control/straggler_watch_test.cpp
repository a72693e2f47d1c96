#include "core/control/straggler_watch.hpp"

#include <gtest/gtest.h>

#include <random>

namespace yoke {
namespace {

// Feeds steps first .. last of ranks that compute `seconds[r]` per step.
std::optional<StragglerWatch::Straggler> feed(StragglerWatch& watch,
                                              int64_t first,
                                              int64_t last,
                                              const std::vector<double>& seconds) {
  std::optional<StragglerWatch::Straggler> found;
  for (int64_t step = first; step <= last; ++step) {
    for (size_t r = 0; r < seconds.size(); ++r) {
      const auto now =
          watch.take(static_cast<int32_t>(r), step, static_cast<double>(step) * seconds[r]);
      if (now) found = now;
    }
  }
  return found;
}

TEST(StragglerWatch, NamesASlowRankWithinTwentySteps) {
  for (const std::vector<double>& seconds :
       {std::vector<double>{1, 1.6}, {2, 1, 1}, {1, 1, 1, 3}}) {
    StragglerWatch watch(static_cast<int32_t>(seconds.size()));
    EXPECT_FALSE(feed(watch, 1, 19, seconds));
    const auto found = feed(watch, 20, 20, seconds);
    ASSERT_TRUE(found);
    const auto slow = std::max_element(seconds.begin(), seconds.end());
    EXPECT_EQ(found->rank, slow - seconds.begin());
    EXPECT_NEAR(found->factor, *slow, 1e-9);
    EXPECT_EQ(found->since, 1);
  }
}

TEST(StragglerWatch, IsSilentBelowTheFactor) {
  StragglerWatch watch(3);
  EXPECT_FALSE(feed(watch, 1, 1000, {1, 1.45, 0.9}));
}

TEST(StragglerWatch, IgnoresASlowWindow) {
  StragglerWatch watch(2);
  EXPECT_FALSE(feed(watch, 1, 10, {1, 2}));
  // take() gets totals: the second rank's next ten steps are as fast as the first one's.
  for (int64_t step = 11; step <= 30; ++step) {
    EXPECT_FALSE(watch.take(0, step, static_cast<double>(step)));
    EXPECT_FALSE(watch.take(1, step, static_cast<double>(step) + 10));
  }
}

TEST(StragglerWatch, AcceptsReportsThatSkipSteps) {
  StragglerWatch watch(2);
  EXPECT_FALSE(watch.take(0, 35, 35));
  EXPECT_FALSE(watch.take(1, 31, 62));
  EXPECT_FALSE(watch.take(0, 70, 70));
  const auto found = watch.take(1, 62, 124);
  ASSERT_TRUE(found);
  EXPECT_EQ(found->rank, 1);
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
      EXPECT_FALSE(watch.take(r, step, total[r]));
    }
  }
}

}  // namespace
}  // namespace yoke
