#include "sdk/mesh/schedule/schedule.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/unit/mesh/random_plan.hpp"

namespace yoke::mesh {
namespace {

using ::testing::ElementsAre;

// Returns n blocks, each a unit of 64 bytes.
StepSpec chain(int n, int shards) {
  StepSpec spec;
  for (int i = 0; i < n; ++i) {
    spec.units.push_back({true, 64, 64});
    spec.blocks.push_back({i});
  }
  spec.shards = shards;
  return spec;
}

// Returns "Unshard 0", "Forward 1" ...: the kind with the unit or block.
std::vector<std::string> short_names(const std::vector<Action>& list) {
  std::vector<std::string> names;
  for (const Action& a : list) {
    const std::string kind = to_string({.kind = a.kind});
    const int what = a.unit >= 0 ? a.unit : a.block;
    names.push_back(what < 0 ? kind : kind + " " + std::to_string(what));
  }
  return names;
}

int count(const std::vector<Action>& list, ActionKind kind) {
  return static_cast<int>(
      std::count_if(list.begin(), list.end(), [&](const Action& a) { return a.kind == kind; }));
}

TEST(Schedule, OneRankOnlyComputesAndUpdates) {
  EXPECT_THAT(
      short_names(build_schedule(chain(2, 1))),
      ElementsAre("Forward 0", "Forward 1", "Backward 1", "Backward 0", "ReduceScalars", "Update"));
}

TEST(Schedule, ReplicasReduceEachUnitBesideTheBackwardOfTheNext) {
  StepSpec spec = chain(2, 1);
  spec.replicas = 2;
  EXPECT_THAT(short_names(build_schedule(spec)),
              ElementsAre("Forward 0",
                          "Forward 1",
                          "Backward 1",
                          "AllReduceGrad 1",
                          "Backward 0",
                          "WaitGrad 1",
                          "AllReduceGrad 0",
                          "WaitGrad 0",
                          "ReduceScalars",
                          "Update"));
}

TEST(Schedule, ShardedUnitsAreGatheredOneAheadInBothDirections) {
  EXPECT_THAT(short_names(build_schedule(chain(4, 2))),
              ElementsAre("Unshard 0",
                          "WaitUnshard 0",
                          "Unshard 1",
                          "Forward 0",
                          "Reshard 0",  //
                          "WaitUnshard 1",
                          "Unshard 2",
                          "Forward 1",
                          "Reshard 1",  //
                          "WaitUnshard 2",
                          "Unshard 3",
                          "Forward 2",  //
                          "WaitUnshard 3",
                          "Forward 3",
                          "Backward 3",
                          "Reshard 3",
                          "ReduceGrad 3",  //
                          "Unshard 1",
                          "Backward 2",
                          "Reshard 2",
                          "WaitReduce 3",
                          "ReduceGrad 2",  //
                          "WaitUnshard 1",
                          "Unshard 0",
                          "Backward 1",
                          "Reshard 1",
                          "WaitReduce 2",
                          "ReduceGrad 1",
                          "WaitUnshard 0",
                          "Backward 0",
                          "Reshard 0",
                          "WaitReduce 1",
                          "ReduceGrad 0",
                          "WaitReduce 0",
                          "ReduceScalars",
                          "Update"));
}

// This list is also in the README.
TEST(Schedule, AUnitThatWouldBeGatheredAgainAtOnceStaysWhole) {
  EXPECT_THAT(short_names(build_schedule(chain(3, 2))),
              ElementsAre("Unshard 0",
                          "WaitUnshard 0",
                          "Unshard 1",
                          "Forward 0",
                          "Reshard 0",
                          "WaitUnshard 1",
                          "Unshard 2",
                          "Forward 1",
                          "WaitUnshard 2",
                          "Forward 2",
                          "Backward 2",
                          "Reshard 2",
                          "ReduceGrad 2",
                          "Unshard 0",
                          "Backward 1",
                          "Reshard 1",
                          "WaitReduce 2",
                          "ReduceGrad 1",
                          "WaitUnshard 0",
                          "Backward 0",
                          "Reshard 0",
                          "WaitReduce 1",
                          "ReduceGrad 0",
                          "WaitReduce 0",
                          "ReduceScalars",
                          "Update"));
}

TEST(Schedule, WithoutReshardingEachUnitIsGatheredOncePerStep) {
  StepSpec spec = chain(4, 2);
  spec.reshard_after_forward = false;
  spec.micros = 3;
  EXPECT_EQ(count(build_schedule(spec), ActionKind::kUnshard), 4);
}

TEST(Schedule, ShardedAccumulationReducesEveryMicroBatch) {
  StepSpec spec = chain(3, 2);
  spec.micros = 4;
  EXPECT_EQ(count(build_schedule(spec), ActionKind::kReduceGrad), 12);
  spec.accumulate = Accumulate::kUnsharded;
  EXPECT_EQ(count(build_schedule(spec), ActionKind::kReduceGrad), 3);
}

TEST(Schedule, ReplicasOfShardsAreSummedOncePerStep) {
  StepSpec spec = chain(3, 2);
  spec.replicas = 2;
  spec.micros = 4;
  const std::vector<Action> list = build_schedule(spec);
  EXPECT_EQ(count(list, ActionKind::kAllReduceGrad), 3);
  for (const Action& a : list) {
    if (a.kind == ActionKind::kAllReduceGrad) {
      EXPECT_EQ(a.bytes, 32);
    }
  }
}

TEST(Schedule, CheckpointingRecomputesAllButTheLastBlock) {
  StepSpec spec = chain(3, 1);
  spec.recompute = Recompute::kBlocks;
  EXPECT_THAT(short_names(build_schedule(spec)),
              ElementsAre("Forward 0",
                          "Forward 1",
                          "Forward 2",
                          "Backward 2",
                          "Recompute 1",
                          "Backward 1",
                          "Recompute 0",
                          "Backward 0",
                          "ReduceScalars",
                          "Update"));
}

TEST(Schedule, BlocksBelowTheFirstTrainableParameterHaveNoBackward) {
  StepSpec spec = chain(3, 2);
  spec.units[0] = {false, 64, 0};
  const std::vector<Action> list = build_schedule(spec);
  EXPECT_EQ(count(list, ActionKind::kBackward), 2);
  EXPECT_EQ(count(list, ActionKind::kReduceGrad), 2);
}

TEST(Schedule, ATrainableUnitWithoutABackwardHereIsInNoAction) {
  for (const int shards : {1, 2}) {
    StepSpec spec = chain(2, shards);
    spec.replicas = 2;
    spec.micros = 2;
    const std::vector<Action> expected = build_schedule(spec);
    spec.units.push_back({true, 64, 64});
    EXPECT_EQ(build_schedule(spec), expected);
  }
}

TEST(Schedule, ATiedUnitIsReducedAfterTheLastOfItsBlocksInBackward) {
  StepSpec spec = chain(4, 2);
  spec.blocks[3] = {0, 3};
  const std::vector<std::string> names = short_names(build_schedule(spec));
  EXPECT_EQ(std::count(names.begin(), names.end(), "ReduceGrad 0"), 1);
  EXPECT_EQ(std::count(names.begin(), names.end(), "Unshard 0"), 3);
}

TEST(Schedule, EvaluationOnlyRunsForwardAndSumsTheLoss) {
  StepSpec spec = chain(2, 2);
  spec.forward_only = true;
  EXPECT_THAT(short_names(build_schedule(spec)),
              ElementsAre("Unshard 0",
                          "WaitUnshard 0",
                          "Unshard 1",
                          "Forward 0",
                          "Reshard 0",
                          "WaitUnshard 1",
                          "Forward 1",
                          "Reshard 1",
                          "ReduceLoss"));
}

TEST(Schedule, AnActionReadsAsASentence) {
  EXPECT_EQ(to_string({.kind = ActionKind::kReduceGrad, .unit = 3, .micro = 0, .bytes = 1024}),
            "ReduceGrad unit 3 micro 0, 1024 bytes");
}

}  // namespace
}  // namespace yoke::mesh
