#include "core/run/plan.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <functional>

namespace yoke {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;

RunConfig config(int64_t global_batch) {
  RunConfig c;
  c.train.global_batch = global_batch;
  return c;
}

TEST(RunPlan, LeavesDegreesUnsetForTheBackend) {
  RunPlan p(config(8), 2);
  for (int32_t d : p.plan().degree) EXPECT_EQ(d, 0);
  EXPECT_EQ(p.plan().micro_batch, 0);
}

TEST(RunPlan, FillsWhatTheBackendLeftUnset) {
  RunPlan p(config(8), 2);
  p.plan().degree[YOKE_DP_SHARD] = 2;
  EXPECT_THAT(p.complete(64), ElementsAre());
  EXPECT_EQ(p.plan().degree[YOKE_TP], 1);
  EXPECT_EQ(p.plan().micro_batch, 4);
  EXPECT_EQ(p.accumulation(), 1);
}

TEST(RunPlan, ReducesInFp32OrBetterUnlessSomebodySaysOtherwise) {
  const std::pair<const char*, int32_t> cases[] = {
      {"bf16", YOKE_F32}, {"fp32", YOKE_F32}, {"fp64", YOKE_F64}};
  for (const auto& [param, reduce] : cases) {
    RunConfig c = config(8);
    c.precision.param = param;
    RunPlan unset(c, 1), by_backend(c, 1);
    EXPECT_EQ(unset.plan().reduce_dtype, 0) << "the backend may choose";
    by_backend.plan().reduce_dtype = YOKE_BF16;
    EXPECT_THAT(unset.complete(64), ElementsAre());
    EXPECT_THAT(by_backend.complete(64), ElementsAre());
    EXPECT_EQ(unset.plan().reduce_dtype, reduce) << param;
    EXPECT_EQ(by_backend.plan().reduce_dtype, YOKE_BF16);
    c.precision.reduce = "bf16";
    EXPECT_EQ(RunPlan(c, 1).plan().reduce_dtype, YOKE_BF16);
  }
}

TEST(RunPlan, HasTheOptimizerOfTheRun) {
  struct Case {
    const char* name;
    bool bias_correction;
    int32_t kind;
  };
  for (const Case& expected : {Case{"sgd", true, YOKE_SGD},
                               {"adamw", true, YOKE_ADAMW},
                               {"adam", true, YOKE_ADAM},
                               {"adamw", false, YOKE_ADAMW_UNCORRECTED},
                               {"adam", false, YOKE_ADAM_UNCORRECTED},
                               {"lion", true, YOKE_LION},
                               {"muon", true, YOKE_MUON}}) {
    RunConfig c = config(8);
    c.train.optimizer = expected.name;
    c.train.bias_correction = expected.bias_correction;
    EXPECT_EQ(RunPlan(c, 1).plan().optimizer->kind, expected.kind) << expected.name;
  }
}

TEST(RunPlan, ChoosesTheLargestMicroBatchBelowTheBound) {
  RunPlan p(config(24), 2);
  p.plan().degree[YOKE_DP_REPLICATE] = 2;
  EXPECT_THAT(p.complete(5), ElementsAre());
  EXPECT_EQ(p.plan().micro_batch, 4);
  EXPECT_EQ(p.accumulation(), 3);
}

TEST(RunPlan, RefusesAProductThatIsNotTheWorld) {
  RunConfig c = config(8);
  c.degrees.dp_shard = 3;
  RunPlan p(c, 2);
  EXPECT_THAT(p.complete(64),
              ElementsAre(testing::AllOf(HasSubstr("dp_shards 3"),
                                         HasSubstr("= 3"),
                                         HasSubstr("2 rank(s)"),
                                         HasSubstr("--nproc 3"))));
}

TEST(RunPlan, RefusesABatchThatDataRanksCannotShare) {
  RunConfig c = config(10);
  c.degrees.dp_shard = 4;
  RunPlan p(c, 4);
  EXPECT_THAT(p.complete(64),
              ElementsAre(testing::AllOf(HasSubstr("train.global_batch = 10"),
                                         HasSubstr("nearest: 8 or 12"))));
}

TEST(RunPlan, NamesTheLegalMicroBatches) {
  RunConfig c = config(12);
  c.train.micro_batch = 4;
  c.degrees.dp_shard = 2;
  RunPlan p(c, 2);
  EXPECT_THAT(p.complete(64), ElementsAre(HasSubstr("allowed: 1, 2, 3, 6")));
}

TEST(RunPlan, FingerprintTellsPlansApart) {
  RunPlan a(config(8), 2), b(config(8), 2);
  b.plan().degree[YOKE_DP_SHARD] = 2;
  EXPECT_NE(fingerprint(a.plan()), fingerprint(b.plan()));
}

TEST(RunPlan, NamesWhatABackendHasChanged) {
  RunConfig c = config(8);
  c.degrees.dp_shard = 2;
  c.train.micro_batch = 2;
  c.precision.reduce = "fp32";
  const auto faults = [&](const std::function<void(YokePlan&)>& change) {
    RunPlan p(c, 2);
    const YokePlan asked = p.plan();
    const YokeOptimizer optimizer = *asked.optimizer;
    change(p.plan());
    return faults_of_backend(asked, optimizer, p.plan());
  };
  EXPECT_THAT(faults([](YokePlan& p) { p.degree[YOKE_TP] = 1; }), ElementsAre());
  EXPECT_THAT(faults([](YokePlan& p) { p.degree[YOKE_DP_SHARD] = 1; }),
              ElementsAre("dp_shards = 2, which plan changed to 1"));
  EXPECT_THAT(faults([](YokePlan& p) { p.world_size = 4; }),
              ElementsAre("the number of ranks = 2, which plan changed to 4"));
  EXPECT_THAT(faults([](YokePlan& p) { p.global_batch = 4; }),
              ElementsAre("train.global_batch = 8, which plan changed to 4"));
  EXPECT_THAT(faults([](YokePlan& p) { p.micro_batch = 1; }),
              ElementsAre("train.micro_batch = 2, which plan changed to 1"));
  EXPECT_THAT(faults([](YokePlan& p) { p.param_dtype = YOKE_BF16; }),
              ElementsAre(HasSubstr("precision.param = fp32 (544), which plan changed to bf16")));
  EXPECT_THAT(faults([](YokePlan& p) { p.reduce_dtype = YOKE_F64; }),
              ElementsAre(HasSubstr("precision.reduce = fp32 (544), which plan changed to fp64")));
  EXPECT_THAT(faults([](YokePlan& p) { p.degree[YOKE_TP] = -1; }),
              ElementsAre("tp_degree became -1"));
  EXPECT_THAT(faults([](YokePlan& p) {
                auto* optimizer = const_cast<YokeOptimizer*>(p.optimizer);
                optimizer->beta2 = 0.5;
              }),
              ElementsAre(HasSubstr("plan changed the optimizer")));
}

}  // namespace
}  // namespace yoke
