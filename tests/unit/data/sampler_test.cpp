#include "core/data/sampler.hpp"

#include <gtest/gtest.h>
#include <rapidcheck.h>

#include <algorithm>
#include <set>
#include <vector>

#include "yoke/error.hpp"

namespace yoke {
namespace {

// Returns the windows of an epoch in the order of the sampler.
std::vector<int64_t> epoch_of(const Sampler& sampler, int64_t epoch) {
  std::vector<int64_t> windows(static_cast<size_t>(sampler.num_windows()));
  for (int64_t i = 0; i < sampler.num_windows(); ++i) {
    windows[static_cast<size_t>(i)] = sampler.window(epoch * sampler.num_windows() + i);
  }
  return windows;
}

// Returns whether the windows are first, first + 1, ... in some order, each once.
bool tiles(std::vector<int64_t> windows, int64_t first) {
  std::sort(windows.begin(), windows.end());
  for (size_t i = 0; i < windows.size(); ++i) {
    if (windows[i] != first + static_cast<int64_t>(i)) return false;
  }
  return true;
}

TEST(Sampler, VisitsEveryWindowOnceInEveryEpochForAnySize) {
  EXPECT_TRUE(rc::check([] {
    const auto n = *rc::gen::inRange<int64_t>(1, 5000), first = *rc::gen::inRange<int64_t>(0, 100);
    const auto epoch = *rc::gen::inRange<int64_t>(0, 1000);
    const Sampler sampler(first, n, true, *rc::gen::arbitrary<uint64_t>());
    RC_ASSERT(tiles(epoch_of(sampler, epoch), first));
  }));
}

TEST(Sampler, VisitsEveryWindowOnceForAllSmallSizes) {
  for (int64_t n = 1; n <= 70; ++n) {
    EXPECT_TRUE(tiles(epoch_of(Sampler(3, n, true, 7), 0), 3)) << n << " windows";
  }
}

TEST(Sampler, GoesInOrderAndWrapsAroundWhenSequential) {
  const Sampler sampler(10, 3, false, 99);
  EXPECT_EQ(epoch_of(sampler, 0), (std::vector<int64_t>{10, 11, 12}));
  EXPECT_EQ(epoch_of(sampler, 5), (std::vector<int64_t>{10, 11, 12}));
  EXPECT_EQ(sampler.window(4), 11);
}

TEST(Sampler, ShufflesDifferentlyForEverySeedAndEpoch) {
  const Sampler one(0, 1000, true, 1), two(0, 1000, true, 2);
  std::set<std::vector<int64_t>> orders;
  for (int64_t epoch = 0; epoch < 4; ++epoch) {
    orders.insert(epoch_of(one, epoch));
    orders.insert(epoch_of(two, epoch));
  }
  EXPECT_EQ(orders.size(), 8u);
}

// A permutation that mixes badly would keep neighbours adjacent. In a random order of n windows,
// about two pairs of neighbours per epoch stay adjacent.
TEST(Sampler, SeparatesNeighbours) {
  const auto order = epoch_of(Sampler(0, 4096, true, 1), 0);
  int together = 0, fixed = 0;
  for (size_t i = 0; i < order.size(); ++i) {
    fixed += order[i] == static_cast<int64_t>(i);
    if (i > 0) together += std::abs(order[i] - order[i - 1]) == 1;
  }
  EXPECT_LT(together, 12);
  EXPECT_LT(fixed, 12);
}

// Every published loss depends on the order, so it must not change between versions.
TEST(Sampler, KeepsItsOrder) {
  const Sampler sampler(0, 10, true, 1);
  EXPECT_EQ(epoch_of(sampler, 0), (std::vector<int64_t>{7, 9, 1, 2, 8, 3, 6, 4, 5, 0}));
}

TEST(Sampler, RefusesNegativeSamplesAndEmptyParts) {
  EXPECT_THROW(Sampler(0, 4, true, 1).window(-1), Error);
  EXPECT_THROW(Sampler(0, 0, false, 1).window(0), Error);
}

}  // namespace
}  // namespace yoke
