#include "core/metrics/progress.hpp"

#include <gtest/gtest.h>

#include <limits>

namespace yoke {
namespace {

TEST(ProgressLine, SaysHowFarHowGoodHowFastAndHowLong) {
  Progress p;
  p.step = 120;
  p.steps = 300;
  p.loss = 1.61234;
  p.tps = 10849.4;
  p.seconds = 120;
  EXPECT_EQ(progress_line(p),
            "step 120/300 [########------------]  40%  loss 1.6123  10,849 tps  3m 00s left");
}

TEST(ProgressLine, TimesOnlyTheStepsOfThisRun) {
  Progress p;
  p.first = 100;
  p.step = 110;
  p.steps = 120;
  p.seconds = 30;
  EXPECT_EQ(progress_line(p), "step 110/120 [##################--]  91%  loss 0.0000  30s left");
}

TEST(ProgressBar, IsFullOnlyAtTheEnd) {
  constexpr int64_t kMost = std::numeric_limits<int64_t>::max();
  const std::string full = "[####################] 100%", almost = "[###################-]  99%";
  EXPECT_EQ(progress_bar(0, 7), "[--------------------]   0%");
  EXPECT_EQ(progress_bar(29, 100), "[#####---------------]  29%");
  EXPECT_EQ(progress_bar(7, 7), full);
  EXPECT_EQ(progress_bar(0, 0), full);
  EXPECT_EQ(progress_bar(kMost, kMost), full);
  EXPECT_EQ(progress_bar(kMost - 1, kMost), almost);
}

}  // namespace
}  // namespace yoke
