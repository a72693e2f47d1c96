// What a Megatron command line with model parallelism becomes, and what is refused.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/unit/megatron_compat/plan_request.hpp"

namespace yoke::megatron_compat::testing {
namespace {

using ::testing::Contains;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

TEST(ModelParallelism, DecidesDegreesAndIsTranslated) {
  PlanRequest request(
      "--tensor-model-parallel-size 2 --pipeline-model-parallel-size 2 --sequence-parallel");
  request.plan.plan.world_size = 8;
  EXPECT_THAT(request.ask(), IsEmpty());
  EXPECT_EQ(request.degree(YOKE_TP), 2);
  EXPECT_EQ(request.degree(YOKE_PP), 2);
  EXPECT_EQ(request.degree(YOKE_CP), 1);
  EXPECT_EQ(request.degree(YOKE_DP_REPLICATE), 2);
  EXPECT_EQ(request.line("parallel_backend"), "\"megatron_compat\"");
  EXPECT_EQ(request.line("tp_degree"), "2");
  EXPECT_EQ(request.line("pp_degree"), "2");
  EXPECT_EQ(request.line("cp_degree"), "");
  EXPECT_EQ(request.line("megatron_compat.sequence_parallel"), "true");
  // The vocabulary is padded to a multiple of 128 times the tensor-parallel size.
  EXPECT_EQ(request.line("model.vocab"), "1024");
}

TEST(ModelParallelism, MayBeSetByTheRunFile) {
  PlanRequest request;
  request.plan.plan.degree[YOKE_CP] = 2;
  request.plan.plan.global_batch = 4;
  request.plan.plan.world_size = 4;
  request.ask();
  EXPECT_EQ(request.degree(YOKE_CP), 2);
  EXPECT_EQ(request.degree(YOKE_DP_REPLICATE), 2);
  PlanRequest other("--tensor-model-parallel-size 2");
  other.plan.plan.degree[YOKE_TP] = 1;
  EXPECT_THAT(other.ask(), Contains(HasSubstr("allowed: 1; the run has tp_degree = 1")));
}

TEST(ModelParallelism, IsRefusedWithTheReason) {
  const struct {
    const char* arguments;
    const char* message;
  } cases[] = {
      {"--tensor-model-parallel-size 4",
       "--tensor-model-parallel-size = 4; allowed: 1 to 2; the run has 2 rank(s)"},
      {"--pipeline-model-parallel-size 0", "allowed: 1 to 2"},
      {"--tensor-model-parallel-size 2 --context-parallel-size 2",
       "pp_degree x cp_degree x tp_degree is 4"},
      {"--pipeline-model-parallel-size 2 --num-virtual-stages-per-pipeline-rank 2",
       "--num-virtual-stages-per-pipeline-rank = 2; allowed: a number of stages that divides the "
       "layers; 2 layers do not divide into 4 equal stages"},
      {"--pipeline-model-parallel-size 2 --num-layers-per-virtual-pipeline-stage 1 "
       "--microbatch-group-size-per-virtual-pipeline-stage 4",
       "--microbatch-group-size-per-virtual-pipeline-stage = 4; allowed: 2"},
      {"--pipeline-model-parallel-size 2 --decoder-first-pipeline-num-layers 3",
       "--decoder-first-pipeline-num-layers = 3; allowed: numbers of layers"},
      {"--pipeline-model-parallel-size 2 --pipeline-model-parallel-layout 'Ett|tL'",
       "it has 3, and the model has 2 layers"},
      {"--pipeline-model-parallel-size 2 --pipeline-model-parallel-layout EttL",
       "it has 1 stage(s) for 2 ranks"},
      {"--pipeline-model-parallel-size 2 --pipeline-model-parallel-layout 'Et|m|tL'",
       "multi-token prediction"},
      {"--pipeline-model-parallel-layout 'Et|tL' --account-for-loss-in-pipeline-split",
       "it contradicts the other arguments about stages"},
      {"--decoder-last-pipeline-num-layers 1 --account-for-embedding-in-pipeline-split",
       "it contradicts the given numbers of layers"},
      {"--num-layers-per-virtual-pipeline-stage 1 --num-virtual-stages-per-pipeline-rank 2",
       "it contradicts --num-virtual-stages-per-pipeline-rank"},
  };
  for (const auto& c : cases)
    EXPECT_THAT(PlanRequest(c.arguments).ask(), Contains(HasSubstr(c.message))) << c.arguments;
}

// The message names what the user wrote, in the run file or in Megatron's arguments.
TEST(ModelParallelism, LayersThatDoNotDivideNameTheNumberOfRanks) {
  PlanRequest of_run;
  of_run.plan.plan.degree[YOKE_PP] = 4;
  of_run.plan.plan.world_size = 4;
  EXPECT_THAT(of_run.ask(),
              Contains(HasSubstr("pp_degree = 4; allowed: a number of stages that divides the "
                                 "layers; 2 layers do not divide into 4 equal stages")));
  PlanRequest of_arguments("--pipeline-model-parallel-size 4");
  of_arguments.plan.plan.world_size = 4;
  EXPECT_THAT(of_arguments.ask(),
              Contains(HasSubstr("--pipeline-model-parallel-size = 4; allowed: a number")));
}

}  // namespace
}  // namespace yoke::megatron_compat::testing
