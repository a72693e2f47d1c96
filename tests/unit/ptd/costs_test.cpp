#include "plugins/ptd/schedule/costs.hpp"

#include <gtest/gtest.h>

namespace yoke::ptd {
namespace {

// Returns four blocks, each a unit of 64 bytes of parameters and 128 bytes of gradients.
StepSpec chain(int shards, int replicas) {
  StepSpec spec;
  for (int i = 0; i < 4; ++i) {
    spec.units.push_back({true, 64, 128});
    spec.blocks.push_back({i});
  }
  spec.shards = shards;
  spec.replicas = replicas;
  return spec;
}

const std::vector<BlockCost> kBlocks(4, {100, 10});

StepCosts costs(const StepSpec& spec, const std::vector<BlockCost>& blocks = kBlocks) {
  const std::vector<Action> list = build_schedule(spec);
  return ActionCosts(spec, list, blocks).totals();
}

TEST(StepCosts, OfOneRankAreItsActivations) {
  const StepCosts c = costs(chain(1, 1));
  EXPECT_EQ(c.unsharded_bytes, 0);
  EXPECT_EQ(c.activation_bytes, 4 * 110);
  EXPECT_EQ(c.dp_shard_bytes + c.dp_replicate_bytes, 0);
}

TEST(StepCosts, OfFsdpAreTwoGathersAndAReductionOfEachUnit) {
  StepSpec spec = chain(2, 1);
  spec.reshard_after_forward = false;
  EXPECT_EQ(costs(spec).dp_shard_bytes, 4 * (64 + 128));
  EXPECT_GE(costs(spec).unsharded_bytes, 4 * 64);
  spec.reshard_after_forward = true;
  EXPECT_GT(costs(spec).dp_shard_bytes, 4 * (64 + 128));
  EXPECT_LE(costs(spec).dp_shard_bytes, 4 * (2 * 64 + 128));
}

TEST(StepCosts, OfHsdpReduceTheShardsOverTheReplicas) {
  EXPECT_EQ(costs(chain(2, 3)).dp_replicate_bytes, 4 * 128 / 2);
  EXPECT_EQ(costs(chain(1, 3)).dp_replicate_bytes, 4 * 128);
}

TEST(StepCosts, OfRecomputingKeepTheCarriesAndOneBlock) {
  StepSpec spec = chain(1, 1);
  spec.recompute = Recompute::kBlocks;
  EXPECT_EQ(costs(spec).activation_bytes, 4 * 10 + 100);
}

// GPipe runs all forwards first: it keeps the input of the stage for each of four micro-batches,
// and everything else for one.
TEST(StepCosts, OfRecomputingStagesKeepTheirInputs) {
  StepSpec spec = chain(1, 1);
  spec.micros = 4;
  spec.recompute = Recompute::kStages;
  spec.pipeline = pipeline_spec(PipelineKind::kGpipe, cut_by_sizes({0, 1}, {4, 4}), 1, 0);
  std::vector<BlockCost> blocks = kBlocks;
  blocks[0].input = 7;
  // The last forward is followed by the first backward, but of another micro-batch. The gradient
  // that passes between the blocks takes 10.
  EXPECT_EQ(costs(spec, blocks).activation_bytes, 4 * 7 + 4 * 110 + 10);
}

// Rank 0 sends its output, and keeps it until the gradient has come back. A gradient is as large as
// the output; while one is used, the next one is received.
TEST(StepCosts, OfRecomputingStagesKeepWhatIsBeingSent) {
  StepSpec spec = chain(1, 1);
  spec.micros = 4;
  spec.recompute = Recompute::kStages;
  spec.pipeline = pipeline_spec(PipelineKind::kGpipe, cut_by_sizes({0, 1}, {4, 4}), 0, 0);
  EXPECT_EQ(costs(spec).activation_bytes, 4 * 10 + 4 * 110 + 2 * 10);
}

// Without a backward a stage keeps only what is being sent, here until the end of the step.
TEST(StepCosts, OfFrozenBlocksAreNotKept) {
  StepSpec spec = chain(1, 1);
  spec.micros = 3;
  spec.pipeline = pipeline_spec(PipelineKind::k1F1B, cut_by_sizes({0, 1}, {4, 4}), 0, 4);
  for (UnitSpec& unit : spec.units) unit = {false, 64, 0};
  EXPECT_EQ(costs(spec).activation_bytes, 3 * 10);
  spec.pipeline = pipeline_spec(PipelineKind::k1F1B, cut_by_sizes({0, 1}, {4, 4}), 1, 7);
  std::vector<BlockCost> blocks = kBlocks;
  blocks[0].input = 7;
  spec.units[3] = {true, 64, 128};
  // The input of the next micro-batch, and all of the trained block with its input.
  EXPECT_EQ(costs(spec, blocks).activation_bytes, 7 + 110 + 10);
}

TEST(StepCosts, OfMicroBatchesKeepOneAtATime) {
  StepSpec spec = chain(1, 1);
  spec.micros = 3;
  EXPECT_EQ(costs(spec).activation_bytes, 4 * 110);
}

TEST(StepCosts, AreUnknownIfABlocksAre) {
  std::vector<BlockCost> blocks = kBlocks;
  blocks[2].activation = -1;
  EXPECT_EQ(costs(chain(1, 1), blocks).activation_bytes, -1);
}

}  // namespace
}  // namespace yoke::ptd
