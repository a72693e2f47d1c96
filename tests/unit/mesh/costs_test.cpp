#include "sdk/mesh/schedule/costs.hpp"

#include <gtest/gtest.h>

#include <algorithm>

namespace yoke::mesh {
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

TEST(StepCosts, OfGathersInFp8AreOneByteForEachElementAndTheScales) {
  StepSpec spec = chain(2, 1);
  spec.reshard_after_forward = false;
  const int64_t before = costs(spec).dp_shard_bytes;
  for (const int u : {1, 2}) spec.units[u].fp8_bytes = 32;  // param_bytes are in bf16
  spec.scale_bytes = 3 * 4;
  EXPECT_EQ(costs(spec).dp_shard_bytes, before - 2 * 32 + 3 * 4);
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
  // The most exists after the last BackwardInput, before the first BackwardWeight. The output of
  // each block is the input of the next one. Three gradients between blocks exist, and that of the
  // input.
  EXPECT_EQ(costs(spec, blocks).activation_bytes, 4 * 7 + 4 * 100 + 3 * 10 + 3 * 10 + 7);
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

// ---- Temporary memory ----

// Passes of different sizes, so that a test sees which one is used.
const std::vector<BlockCost> kWithPasses(
    4, {.activation = 100, .carry = 10, .passes = PassPeaks{300, 50, 20, 7}});

struct Peaks {
  std::vector<Action> list;
  std::vector<int64_t> activation, temporary;

  explicit Peaks(const StepSpec& spec, const std::vector<BlockCost>& blocks = kWithPasses)
      : list(build_schedule(spec)),
        activation(ActionCosts(spec, list, blocks).activation_bytes()),
        temporary(ActionCosts(spec, list, blocks).temporary_bytes()) {}

  size_t find(ActionKind kind, int block) const {
    const auto at = std::find_if(list.begin(), list.end(), [&](const Action& a) {
      return a.kind == kind && a.block == block;
    });
    return static_cast<size_t>(at - list.begin());
  }
};

// A pass begins with what the action before has left, and its peak counts from there.
TEST(TemporaryBytes, AreWhatAPassNeedsBeyondItsEnd) {
  const Peaks peaks(chain(1, 1));
  const size_t forward = peaks.find(ActionKind::kForward, 0);
  EXPECT_EQ(peaks.temporary.at(forward), 300 - 110);
  const size_t backward = peaks.find(ActionKind::kBackward, 2);
  EXPECT_EQ(peaks.activation.at(backward - 1), 3 * 110 + 10);
  EXPECT_EQ(peaks.activation.at(backward), 2 * 110 + 10);
  EXPECT_EQ(peaks.temporary.at(backward), 50 + 110);
  EXPECT_EQ(peaks.temporary.back(), 0);
}

TEST(TemporaryBytes, AreAtLeastNone) {
  std::vector<BlockCost> blocks = kWithPasses;
  for (BlockCost& block : blocks) block.passes = PassPeaks{};
  const Peaks peaks(chain(1, 1), blocks);
  EXPECT_EQ(peaks.temporary.at(peaks.find(ActionKind::kForward, 1)), 0);
  EXPECT_EQ(peaks.temporary.at(peaks.find(ActionKind::kBackward, 1)), 110);
}

StepSpec split_backward() {
  StepSpec spec = chain(1, 1);
  spec.micros = 1;
  spec.pipeline = pipeline_spec(PipelineKind::kZbH1, cut_by_sizes({0, 1}, {4, 4}), 0, 0);
  return spec;
}

TEST(TemporaryBytes, OfTheTwoPartsOfABackwardHaveTheirOwnPeaks) {
  const Peaks peaks(split_backward());
  const size_t input = peaks.find(ActionKind::kBackwardInput, 3);
  EXPECT_EQ(peaks.temporary.at(input),
            peaks.activation.at(input - 1) + 20 - peaks.activation.at(input));
  const size_t weight = peaks.find(ActionKind::kBackwardWeight, 3);
  EXPECT_EQ(peaks.temporary.at(weight),
            peaks.activation.at(weight - 1) + 7 - peaks.activation.at(weight));
}

// After BackwardInput, products keep as much as the block has kept, the block's input, and the
// gradients of its output and of its input, but not its output.
TEST(StepCosts, OfASplitBackwardKeepWhatItsSecondPartNeeds) {
  const Peaks peaks(split_backward());
  const int64_t before = peaks.activation.at(peaks.find(ActionKind::kBackwardInput, 3) - 1);
  EXPECT_EQ(before, 4 * 110 + 10);
  // A gradient replaces the output of the stage.
  EXPECT_EQ(peaks.activation.at(peaks.find(ActionKind::kBackwardInput, 3)), before);
  // The output of block 2 is the input of block 3, which keeps it.
  EXPECT_EQ(peaks.activation.at(peaks.find(ActionKind::kBackwardInput, 2)), before + 10);
}

// A block that has kept nothing, such as a look-up, has no products.
TEST(StepCosts, OfASplitBackwardKeepNothingForABlockWithoutProducts) {
  std::vector<BlockCost> blocks = kWithPasses;
  blocks[3].activation = 0;
  const Peaks peaks(split_backward(), blocks);
  const size_t input = peaks.find(ActionKind::kBackwardInput, 3);
  // The gradient of the input replaces that of the output, and the output is free.
  EXPECT_EQ(peaks.activation.at(input), peaks.activation.at(input - 1) - 10);
}

// The gradient of a stage's input stays after it has been sent, until the last gradients of weights
// of its micro-batch are computed.
TEST(StepCosts, OfASplitBackwardKeepTheGradientOfTheStagesInput) {
  StepSpec spec = chain(1, 1);
  spec.micros = 8;
  spec.pipeline =
      pipeline_spec(PipelineKind::kZbH1, cut_by_sizes({0, 1, 2, 3}, {4, 4, 4, 4}), 2, 0);
  std::vector<BlockCost> blocks = kWithPasses;
  blocks[0].input = 7;
  const Peaks peaks(spec, blocks);
  std::vector<bool> done(8, false);
  int early = 0;
  for (size_t i = 1; i < peaks.list.size(); ++i) {
    const Action& a = peaks.list[i];
    if (a.kind == ActionKind::kBackwardWeight && a.block == 0) done[a.micro] = true;
    if (a.kind != ActionKind::kFreeCarryGrad) continue;
    early += done[a.micro] ? 0 : 1;
    EXPECT_EQ(peaks.activation[i], peaks.activation[i - 1] - (done[a.micro] ? 7 : 0));
  }
  EXPECT_GT(early, 0);
}

TEST(TemporaryBytes, OfARecomputeAreThoseOfAForward) {
  StepSpec spec = chain(1, 1);
  spec.recompute = Recompute::kBlocks;
  const Peaks peaks(spec);
  const size_t recompute = peaks.find(ActionKind::kRecompute, 1);
  EXPECT_EQ(peaks.temporary.at(recompute),
            peaks.activation.at(recompute - 1) + 300 - peaks.activation.at(recompute));
}

TEST(TemporaryBytes, AreUnknownIfThoseOfABlockAre) {
  std::vector<BlockCost> blocks = kWithPasses;
  blocks[2].passes.reset();
  EXPECT_TRUE(Peaks(chain(1, 1), blocks).temporary.empty());
  blocks = kWithPasses;
  blocks[2].activation = -1;
  EXPECT_TRUE(Peaks(chain(1, 1), blocks).temporary.empty());
}

TEST(StepCosts, AreUnknownIfABlocksAre) {
  std::vector<BlockCost> blocks = kBlocks;
  blocks[2].activation = -1;
  EXPECT_EQ(costs(chain(1, 1), blocks).activation_bytes, -1);
}

}  // namespace
}  // namespace yoke::mesh
