#include "core/data/sample_assignment.hpp"

#include <gtest/gtest.h>
#include <rapidcheck.h>

#include <algorithm>
#include <vector>

namespace yoke {
namespace {

// Returns the samples of the global batch at `start`, for every data rank and micro-batch.
std::vector<int64_t> samples_of_step(SampleAssignment layout, int64_t start) {
  std::vector<int64_t> samples;
  for (layout.data_rank = 0; layout.data_rank < layout.data_ranks; ++layout.data_rank) {
    for (int64_t micro = 0; micro < layout.accumulation; ++micro) {
      const int64_t first = layout.first_sample(start, micro);
      for (int64_t i = 0; i < layout.micro_batch; ++i) samples.push_back(first + i);
    }
  }
  return samples;
}

TEST(SampleAssignment, GivesEveryLayoutTheSameSamplesInAStep) {
  EXPECT_TRUE(rc::check([] {
    const auto start = *rc::gen::inRange<int64_t>(0, 1000000000);
    const SampleAssignment layout{.data_ranks = *rc::gen::inRange<int32_t>(1, 9),
                                  .accumulation = *rc::gen::inRange<int32_t>(1, 5),
                                  .micro_batch = *rc::gen::inRange<int32_t>(1, 9)};
    std::vector<int64_t> samples = samples_of_step(layout, start);
    RC_ASSERT(static_cast<int64_t>(samples.size()) == layout.global_batch());
    std::sort(samples.begin(), samples.end());
    for (int64_t i = 0; i < layout.global_batch(); ++i) RC_ASSERT(samples[i] == start + i);
  }));
}

TEST(SampleAssignment, GivesNeighbouringSamplesOfAMicroBatchToEachDataRank) {
  const SampleAssignment rank1{
      .data_rank = 1, .data_ranks = 2, .accumulation = 2, .micro_batch = 3};
  EXPECT_EQ(rank1.global_batch(), 12);
  EXPECT_EQ(rank1.first_sample(0, 0), 3);
  EXPECT_EQ(rank1.first_sample(0, 1), 9);
  EXPECT_EQ(rank1.first_sample(24, 1), 33);
}

// A position in the order of samples must not overflow in a long run with a large batch.
TEST(SampleAssignment, CountsInSixtyFourBits) {
  const SampleAssignment last{
      .data_rank = 4095, .data_ranks = 4096, .accumulation = 4096, .micro_batch = 4096};
  EXPECT_EQ(last.global_batch(), int64_t{1} << 36);
  EXPECT_EQ(last.first_sample(0, 4095), (int64_t{1} << 36) - 4096);
}

}  // namespace
}  // namespace yoke
