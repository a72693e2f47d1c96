#include "core/run/stop.hpp"

#include <gtest/gtest.h>

#include <csignal>

namespace yoke {
namespace {

// The handlers keep their state until the process ends, so this must be a single test.
TEST(StopHandlers, CountTheSameSignalInARowOnceAndAnotherOneAsTheSecond) {
  install_stop_handlers();
  EXPECT_EQ(stop_signal(), 0);
  ASSERT_EQ(std::raise(SIGTERM), 0);
  EXPECT_EQ(stop_signal(), SIGTERM);
  ASSERT_EQ(std::raise(SIGTERM), 0);
  EXPECT_FALSE(cancel_flag().load());
  ASSERT_EQ(std::raise(SIGINT), 0);
  EXPECT_EQ(stop_signal(), SIGTERM);
  EXPECT_TRUE(cancel_flag().load());
}

}  // namespace
}  // namespace yoke
