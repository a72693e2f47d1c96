#include "core/launch/restart_policy.hpp"

#include <gmock/gmock.h>

#include "core/base/exit_code.hpp"

namespace yoke {
namespace {

using std::chrono::milliseconds;
using ::testing::HasSubstr;

TEST(RestartPolicy, RestartsAfterTheLossOfARankOnly) {
  for (const int code :
       {kExitOk, kExitFailed, kExitUsage, kExitPlugin, kExitSaved, kExitSigint, kExitSigterm}) {
    RestartPolicy policy(5);
    EXPECT_FALSE(policy.next(code, 10)) << code;
    EXPECT_EQ(policy.reason(), "");
  }
  RestartPolicy policy(5);
  EXPECT_EQ(policy.next(kExitRankLost, 10), milliseconds(0));
}

TEST(RestartPolicy, KeepsToTheNumberOfRestarts) {
  RestartPolicy none(0);
  EXPECT_FALSE(none.next(kExitRankLost, 10));
  EXPECT_EQ(none.reason(), "") << "nobody asked for a restart";
  RestartPolicy two(2);
  EXPECT_TRUE(two.next(kExitRankLost, 10));
  EXPECT_TRUE(two.next(kExitRankLost, 20));
  EXPECT_FALSE(two.next(kExitRankLost, 30));
  EXPECT_THAT(two.reason(), HasSubstr("all 2 restarts are used"));
}

TEST(RestartPolicy, GivesUpWhenNoStepIsSaved) {
  RestartPolicy policy(100);
  EXPECT_EQ(policy.next(kExitRankLost, 10), milliseconds(0));
  EXPECT_EQ(policy.next(kExitRankLost, 10), milliseconds(1000));
  EXPECT_EQ(policy.next(kExitRankLost, 10), milliseconds(3000));
  EXPECT_FALSE(policy.next(kExitRankLost, 10));
  EXPECT_THAT(policy.reason(), HasSubstr("3 attempts in a row have not saved a step"));
}

TEST(RestartPolicy, StartsToCountAnewAfterASavedStep) {
  RestartPolicy policy(100);
  for (int64_t step = 0; step < 50; ++step) {
    EXPECT_EQ(policy.next(kExitRankLost, step), milliseconds(0));
    EXPECT_EQ(policy.next(kExitRankLost, step), milliseconds(1000));
  }
}

TEST(RestartPolicy, DoesNotCountWhatItDoesNotKnow) {
  RestartPolicy policy(6);
  for (int i = 0; i < 6; ++i) EXPECT_EQ(policy.next(kExitRankLost, {}), milliseconds(0));
  EXPECT_FALSE(policy.next(kExitRankLost, {}));
  EXPECT_THAT(policy.reason(), HasSubstr("all 6 restarts are used"));
}

TEST(RestartPolicy, CountsAttemptsWithoutAnyCheckpoint) {
  RestartPolicy policy(100);
  EXPECT_EQ(policy.next(kExitRankLost, -1), milliseconds(1000));
  EXPECT_EQ(policy.next(kExitRankLost, -1), milliseconds(3000));
  EXPECT_FALSE(policy.next(kExitRankLost, -1));
}

}  // namespace
}  // namespace yoke
