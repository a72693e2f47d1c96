#include "sdk/mesh/schedule/unsharded.hpp"

#include <gtest/gtest.h>

#include <algorithm>

namespace yoke::mesh {
namespace {

// Returns the step of 20 units over two shards. Their buffers have 128 bytes, and those of shards
// half of that.
StepSpec twenty_units() {
  StepSpec spec;
  spec.units.assign(20, {true, 128, 128});
  for (int i = 0; i < 20; ++i) spec.blocks.push_back({i});
  spec.shards = 2;
  return spec;
}

int64_t peak(const StepSpec& spec) {
  const std::vector<int64_t> bytes = unsharded_bytes(spec, build_schedule(spec));
  return *std::max_element(bytes.begin(), bytes.end());
}

TEST(UnshardedBytes, OfAStepAreTwoUnitsOfParametersAndTwoOfGradients) {
  StepSpec spec = twenty_units();
  EXPECT_EQ(peak(spec), 4 * 128);
  spec.accumulate = Accumulate::kUnsharded;
  spec.micros = 2;
  EXPECT_EQ(peak(spec), (20 + 2) * 128);
  spec.reshard_after_forward = false;
  EXPECT_EQ(peak(spec), 40 * 128);
}

// A micro-batch after the first one is reduced into a buffer, and then added to the shard.
TEST(UnshardedBytes, OfSeveralMicroBatchesHaveAReducedOneInAddition) {
  StepSpec spec = twenty_units();
  spec.micros = 2;
  EXPECT_EQ(peak(spec), 4 * 128 + 128 / 2);
}

// A cast shard exists while it is gathered, and at most two units are gathered at a time.
TEST(UnshardedBytes, OfCastShardsCountTheirCopies) {
  StepSpec spec = twenty_units();
  spec.reshard_after_forward = false;
  spec.accumulate = Accumulate::kUnsharded;
  for (UnitSpec& unit : spec.units) unit = {true, 64, 0, -1, -1, 32};
  const int64_t with_casts = peak(spec);
  for (UnitSpec& unit : spec.units) unit.cast_bytes = 0;
  EXPECT_EQ(peak(spec), 20 * 64);
  EXPECT_GE(with_casts, 20 * 64 + 32);
  EXPECT_LE(with_casts, 20 * 64 + 2 * 32);
}

// Gathered numbers exist from the gather until they are converted, and only then does the buffer of
// the compute type exist. So one buffer of numbers is enough.
TEST(UnshardedBytes, OfGathersInFp8CountTheGatheredNumbers) {
  StepSpec spec = twenty_units();
  spec.reshard_after_forward = false;
  spec.accumulate = Accumulate::kUnsharded;
  spec.scale_bytes = 4;
  for (UnitSpec& unit : spec.units) unit = {.param_bytes = 64, .fp8_bytes = 32};
  EXPECT_EQ(peak(spec), 20 * 64 + 32);
  spec.units[7].fp8_bytes = 0;
  EXPECT_EQ(peak(spec), 20 * 64 + 32);
}

// What was in use once is idle for the rest of the run, from the first action of the next step on.
TEST(UnshardedBytes, StayWhenTheyAreIdle) {
  const StepSpec spec = twenty_units();
  const std::vector<int64_t> bytes = unsharded_bytes(spec, build_schedule(spec));
  EXPECT_EQ(bytes, std::vector<int64_t>(bytes.size(), 4 * 128));
}

// Rounded weights are kept if several micro-batches of a training step use them.
TEST(UnshardedBytes, OfOneShardAreRoundedWeights) {
  StepSpec spec = twenty_units();
  spec.shards = 1;
  EXPECT_EQ(peak(spec), 0);
  spec.rounding_bytes = 40;
  EXPECT_EQ(peak(spec), 0);
  spec.micros = 2;
  EXPECT_EQ(peak(spec), 40);
  spec.forward_only = true;
  EXPECT_EQ(peak(spec), 0);
}

}  // namespace
}  // namespace yoke::mesh
