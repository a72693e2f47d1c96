#include "plugins/ptd/executor/stream_wait.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <chrono>
#include <stdexcept>

#include "yoke/error.hpp"

namespace yoke::ptd {
namespace {

using Clock = std::chrono::steady_clock;

// Returns a function that is true after so many seconds.
std::function<bool()> after(double seconds) {
  return
      [end = Clock::now() + std::chrono::duration<double>(seconds)] { return Clock::now() >= end; };
}

TEST(StreamWait, EndsWhenTheWorkIsDone) {
  StreamWait wait([] {});
  for (const double seconds : {0.0, 0.003, 0.003, 0.001}) {
    const auto begin = Clock::now();
    wait.wait(after(seconds), std::nullopt);
    EXPECT_GE(std::chrono::duration<double>(Clock::now() - begin).count(), seconds);
  }
  wait.wait(work_of_stream(c10::kCPU), std::nullopt);
}

// Near the time that the last wait took, polls follow each other without a sleep, before which
// keep_waiting() would be called. A busy machine may take the processor from the thread just then,
// but not every time.
TEST(StreamWait, DoesNotSleepWhenTheWorkIsExpectedToEnd) {
  int sleeps = 0, at_last_poll = 0;
  bool awake = false;
  for (int attempts = 0; attempts < 1000 && !awake; ++attempts) {
    StreamWait wait([&] { ++sleeps; });
    wait.wait(after(1e-3), std::nullopt);
    at_last_poll = -1;
    wait.wait(
        [&, ends = after(2e-3)] {
          awake = awake || sleeps == at_last_poll;
          at_last_poll = sleeps;
          return ends();
        },
        std::nullopt);
  }
  EXPECT_TRUE(awake);
}

// Here the work ends long before.
TEST(StreamWait, SleepsBeforeTheWorkIsExpectedToEnd) {
  int sleeps = 0;
  for (int attempts = 0; attempts < 1000 && sleeps != 1; ++attempts) {
    StreamWait wait([&] { ++sleeps; });
    wait.wait(after(1e-2), std::nullopt);
    sleeps = 0;
    wait.wait([polls = 0]() mutable { return ++polls == 2; }, std::nullopt);
  }
  EXPECT_EQ(sleeps, 1);
}

TEST(StreamWait, CanBeEnded) {
  int calls = 0;
  StreamWait wait([&] {
    if (++calls == 3) throw std::runtime_error("cancelled");
  });
  EXPECT_THROW(wait.wait([] { return false; }, std::nullopt), std::runtime_error);
  EXPECT_EQ(calls, 3);
}

TEST(StreamWait, FailsAtItsLimit) {
  StreamWait wait([] {});
  wait.wait(after(0.01), 0.01);  // the first wait has no longest one before it, hence no limit
  try {
    wait.wait([] { return false; }, 0.01);
    FAIL();
  } catch (const Error& e) {
    EXPECT_EQ(e.code(), YOKE_DEADLINE_EXCEEDED);
    EXPECT_THAT(e.what(), ::testing::HasSubstr("ptd.cuda_graph=false"));
  }
}

}  // namespace
}  // namespace yoke::ptd
