#include <gtest/gtest.h>
#include <rapidcheck.h>

#include <algorithm>
#include <numeric>
#include <set>

#include "core/data/token_stream.hpp"
#include "yoke/error.hpp"

namespace yoke {
namespace {

std::vector<int64_t> epoch_of(const Sampler& sampler, int64_t epoch) {
  std::vector<int64_t> windows(static_cast<size_t>(sampler.num_windows()));
  for (int64_t i = 0; i < sampler.num_windows(); ++i) {
    windows[static_cast<size_t>(i)] = sampler.window(epoch * sampler.num_windows() + i);
  }
  return windows;
}

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

// A network that hardly mixes would leave neighbours together. In a random order of n windows two
// neighbours stay together about twice in an epoch.
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

// The order is part of every published loss: it must not change from one version to the next.
TEST(Sampler, KeepsItsOrder) {
  const Sampler sampler(0, 10, true, 1);
  EXPECT_EQ(epoch_of(sampler, 0), (std::vector<int64_t>{7, 9, 1, 2, 8, 3, 6, 4, 5, 0}));
}

TEST(Sampler, RefusesNegativeSamplesAndEmptyParts) {
  EXPECT_THROW(Sampler(0, 4, true, 1).window(-1), Error);
  EXPECT_THROW(Sampler(0, 0, false, 1).window(0), Error);
}

// All samples of one step, over every data rank and micro-batch.
std::vector<int64_t> samples_of_step(int64_t step,
                                     int64_t data_ranks,
                                     int64_t accumulation,
                                     int64_t sequences) {
  std::vector<int64_t> samples;
  for (int64_t rank = 0; rank < data_ranks; ++rank) {
    for (int64_t micro = 0; micro < accumulation; ++micro) {
      const int64_t first = first_sample(step, micro, accumulation, rank, data_ranks, sequences);
      for (int64_t i = 0; i < sequences; ++i) samples.push_back(first + i);
    }
  }
  return samples;
}

TEST(FirstSample, GivesEveryLayoutTheSameSamplesInAStep) {
  EXPECT_TRUE(rc::check([] {
    const auto step = *rc::gen::inRange<int64_t>(0, 1000000);
    const auto data_ranks = *rc::gen::inRange<int64_t>(1, 9),
               accumulation = *rc::gen::inRange<int64_t>(1, 5);
    const auto sequences = *rc::gen::inRange<int64_t>(1, 9);
    const int64_t global_batch = data_ranks * accumulation * sequences;
    auto samples = samples_of_step(step, data_ranks, accumulation, sequences);
    RC_ASSERT(static_cast<int64_t>(samples.size()) == global_batch);
    RC_ASSERT(tiles(samples, step * global_batch));
  }));
}

TEST(FirstSample, GivesAMicroBatchNeighbouringRunsOfAllDataRanks) {
  // G = 12: micro-batch 1 of step 2 starts at 24 + 1*2*3; data rank 1 takes the second run of 3.
  EXPECT_EQ(first_sample(2, 1, 2, 1, 2, 3), 33);
}

}  // namespace
}  // namespace yoke
