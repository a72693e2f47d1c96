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
