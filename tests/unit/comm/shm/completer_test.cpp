#include "core/comm/shm/completer.hpp"

#include <gtest/gtest.h>

#include <atomic>
#include <future>

namespace yoke {
namespace {

TEST(Completer, CallsBackAsSoonAsATaskIsCompletedWhateverItsOrder) {
  Completer completer;
  std::atomic<bool> first_ready{false};
  std::promise<void> first, second;
  completer.add([&](bool) { return first_ready.load(); }, [&] { first.set_value(); });
  completer.add([](bool) { return true; }, [&] { second.set_value(); });
  second.get_future().wait();
  first_ready = true;
  first.get_future().wait();
}

TEST(Completer, LetsOneTaskAtATimeDoze) {
  std::atomic<int> dozes{0}, rounds{0};
  std::promise<void> done;
  Completer completer;
  completer.add(
      [&](bool doze) {
        dozes += doze ? 1 : 0;
        return ++rounds == 100;
      },
      [&] { done.set_value(); });
  done.get_future().wait();
  EXPECT_EQ(dozes, 100);
}

TEST(Completer, DropsWhatIsLeft) {
  std::atomic<bool> called{false};
  const auto held = std::make_shared<int>(1);
  {
    Completer completer;
    completer.add([held](bool) { return false; }, [&] { called = true; });
  }
  EXPECT_FALSE(called);
  EXPECT_EQ(held.use_count(), 1);
}

TEST(Completer, MayBeDestroyedByItsOwnCallback) {
  std::promise<void> done;
  auto completer = std::make_shared<Completer>();
  auto* raw = completer.get();
  raw->add([completer](bool) { return true; }, [&] { done.set_value(); });
  completer.reset();
  done.get_future().wait();
}

}  // namespace
}  // namespace yoke
