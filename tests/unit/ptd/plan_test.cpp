#include "plugins/ptd/plan.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/unit/ptd/rig.hpp"

namespace yoke::ptd::testing {
namespace {

using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

// A plan of `world` ranks with nothing set but what is in `degrees` (dp_replicate, dp_shard).
struct Asked {
  Asked(int world, std::pair<int, int> degrees)
      : optimizer(optimizer_of(job)), plan(plan_of(job, optimizer)) {
    plan.world_size = world;
    for (int32_t& degree : plan.degree) degree = 0;
    plan.degree[YOKE_DP_REPLICATE] = degrees.first;
    plan.degree[YOKE_DP_SHARD] = degrees.second;
  }
  std::vector<std::string> ask(const std::vector<std::string>& given = {}) {
    return ask_plan(job, plan, given);
  }

  Job job;
  YokeOptimizer optimizer;
  YokePlan plan;
};

TEST(Plan, WhatIsLeftOfTheWorldGoesIntoShards) {
  Asked alone(8, {0, 0});
  EXPECT_THAT(alone.ask(), IsEmpty());
  EXPECT_EQ(alone.plan.degree[YOKE_DP_SHARD], 8);
  EXPECT_EQ(alone.plan.degree[YOKE_TP], 1);
  Asked replicated(8, {2, 0});
  EXPECT_THAT(replicated.ask(), IsEmpty());
  EXPECT_EQ(replicated.plan.degree[YOKE_DP_SHARD], 4);
}

TEST(Plan, GivenDegreesStay) {
  Asked hsdp(4, {2, 2});
  EXPECT_THAT(hsdp.ask(), IsEmpty());
  EXPECT_EQ(hsdp.plan.degree[YOKE_DP_REPLICATE], 2);
}

TEST(Plan, AProductThatIsNotTheWorldIsRefusedWithTheArithmetic) {
  Asked wrong(4, {2, 3});
  EXPECT_THAT(wrong.ask(),
              ElementsAre(HasSubstr("dp_degree 2 x dp_shards 3 = 6, but the run has 4 rank(s)")));
}

TEST(Plan, ReplicasMustDivideTheWorld) {
  Asked wrong(4, {3, 0});
  EXPECT_THAT(wrong.ask(),
              ElementsAre(HasSubstr("dp_degree = 3; allowed: a divisor of the 4 ranks")));
}

TEST(Plan, EveryReasonIsGivenAtOnce) {
  Asked wrong(4, {0, 0});
  wrong.plan.degree[YOKE_TP] = 2;
  wrong.plan.degree[YOKE_PP] = 2;
  wrong.plan.param_dtype = YOKE_F16;
  EXPECT_THAT(
      wrong.ask(),
      ElementsAre(HasSubstr("pp_degree > 1 is not built yet"),
                  HasSubstr("tp_degree = 2"),
                  AllOf(HasSubstr("precision.param = fp16"), HasSubstr("bf16, fp32, fp64"))));
}

TEST(Plan, GradientsAreReducedInFp32OrBetterUnlessBf16IsAskedFor) {
  for (const int32_t param : {YOKE_BF16, YOKE_F32, YOKE_F64}) {
    Asked unset(1, {0, 0});
    unset.plan.param_dtype = param;
    unset.plan.reduce_dtype = 0;
    EXPECT_THAT(unset.ask(), IsEmpty());
    EXPECT_EQ(unset.plan.reduce_dtype, param == YOKE_F64 ? YOKE_F64 : YOKE_F32);
  }
  Asked narrow(1, {0, 0});
  narrow.plan.param_dtype = narrow.plan.reduce_dtype = YOKE_BF16;
  EXPECT_THAT(narrow.ask(), IsEmpty());
}

TEST(Plan, GradientsAreNotReducedInLessThanTheComputeType) {
  Asked wrong(1, {0, 0});
  wrong.plan.reduce_dtype = YOKE_F32;
  EXPECT_THAT(wrong.ask(),
              ElementsAre(AllOf(HasSubstr("precision.reduce = fp32"), HasSubstr("at least fp64"))));
}

TEST(Plan, AnOptionWithoutEffectIsNoted) {
  Asked alone(1, {0, 0});
  EXPECT_THAT(
      alone.ask({"reshard_after_forward"}),
      ElementsAre(AllOf(HasSubstr("note: ptd.reshard_after_forward"), HasSubstr("no effect"))));
}

}  // namespace
}  // namespace yoke::ptd::testing
