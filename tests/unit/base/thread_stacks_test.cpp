#include "core/base/thread_stacks.hpp"

#include <gmock/gmock.h>
#include <pthread.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <csignal>
#include <thread>

namespace yoke {

// Not static, so that the dynamic symbol table has its name.
__attribute__((noinline)) void wait_in_a_named_function(const std::atomic<bool>& end) {
  while (!end.load()) ::usleep(1000);
}

namespace {

TEST(ThreadStacks, ShowWhereOtherThreadsAre) {
  std::atomic<bool> end{false};
  std::atomic<int> id{0};
  std::thread other([&] {
    ::pthread_setname_np(::pthread_self(), "waiting");
    id = ::gettid();
    wait_in_a_named_function(end);
  });
  while (id == 0) std::this_thread::yield();
  const std::vector<ThreadStack> stacks = thread_stacks();
  end = true;
  other.join();
  const auto found =
      std::find_if(stacks.begin(), stacks.end(), [&](auto& s) { return s.id == id; });
  ASSERT_NE(found, stacks.end());
  EXPECT_EQ(found->name, "waiting");
  EXPECT_GE(found->frames.size(), 3u);
  for (const ThreadStack& s : stacks) EXPECT_NE(s.id, ::gettid());
}

TEST(ThreadStacks, DoNotWaitForAThreadThatBlocksTheSignal) {
  std::atomic<bool> end{false}, ready{false};
  std::thread other([&] {
    sigset_t all;
    ::sigfillset(&all);
    ::pthread_sigmask(SIG_BLOCK, &all, nullptr);
    ready = true;
    wait_in_a_named_function(end);
  });
  while (!ready) std::this_thread::yield();
  const std::vector<ThreadStack> stacks = thread_stacks();
  end = true;
  other.join();
  ASSERT_EQ(stacks.size(), 1u);
  EXPECT_TRUE(stacks[0].frames.empty());
}

}  // namespace
}  // namespace yoke
