#include "plugins/deepspeed_stub/config/loss_scale.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/unit/deepspeed_stub/plan_request.hpp"

namespace yoke::deepspeed_stub::testing {
namespace {

using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::Not;
using ::testing::UnorderedElementsAre;
using ::testing::UnorderedElementsAreArray;

const std::vector<std::string> kDynamicScale{"loss_scale.static = 0.0",
                                             "loss_scale.rule = \"deepspeed\"",
                                             "loss_scale.initial_power = 16",
                                             "loss_scale.window = 1000",
                                             "loss_scale.hysteresis = 2",
                                             "loss_scale.consecutive_hysteresis = false",
                                             "loss_scale.min = 1.0"};

// What the file leaves out has DeepSpeed's default, whatever that of the run file is.
TEST(LossScale, OfFp16HasTheDefaultsOfDeepSpeed) {
  PlanRequest run(2,
                  R"({"fp16": {"enabled": true, "auto_cast": true}, "bf16": {"enabled": false},
                      "zero_optimization": {"stage": 1}})");
  run.plan.plan.param_dtype = run.plan.plan.reduce_dtype = YOKE_F16;
  EXPECT_THAT(run.ask(), ElementsAre(HasSubstr("fp16.auto_cast = true; no effect here")));
  std::vector<std::string> lines = kDynamicScale;
  lines.insert(lines.end(),
               {"precision.param = \"fp16\"",
                "parallel_backend = \"deepspeed_stub\"",
                "deepspeed_stub.zero_stage = 1"});
  EXPECT_THAT(run.lines, UnorderedElementsAreArray(lines));
}

TEST(LossScale, HasTheValuesOfTheFile) {
  PlanRequest run(2, R"({"fp16": {"enabled": "auto", "loss_scale": 0, "initial_scale_power": 8,
                         "loss_scale_window": 5e1, "hysteresis": 3, "consecutive_hysteresis": true,
                         "min_loss_scale": 0.5}, "zero_optimization": {"stage": 3}})");
  run.plan.plan.param_dtype = run.plan.plan.reduce_dtype = YOKE_F16;
  EXPECT_THAT(run.ask(), IsEmpty());
  EXPECT_THAT(run.lines,
              UnorderedElementsAre("parallel_backend = \"deepspeed_stub\"",
                                   "deepspeed_stub.zero_stage = 3",
                                   "loss_scale.static = 0.0",
                                   "loss_scale.rule = \"deepspeed\"",
                                   "loss_scale.initial_power = 8",
                                   "loss_scale.window = 50",
                                   "loss_scale.hysteresis = 3",
                                   "loss_scale.consecutive_hysteresis = true",
                                   "loss_scale.min = 0.5"));
}

// At stage 0 DeepSpeed scales with FP16_Optimizer, not with DynamicLossScaler.
TEST(LossScale, HasTheRuleOfFp16OptimizerAtStage0) {
  const std::vector<std::string> lines{"precision.param = \"fp16\"",
                                       "parallel_backend = \"deepspeed_stub\"",
                                       "loss_scale.static = 0.0",
                                       "loss_scale.rule = \"fp16_optimizer\"",
                                       "loss_scale.initial_power = 16",
                                       "loss_scale.window = 1000",
                                       "loss_scale.min = 1.0"};
  PlanRequest silent(2, R"({"fp16": {"enabled": true}})");
  silent.plan.plan.param_dtype = silent.plan.plan.reduce_dtype = YOKE_F16;
  EXPECT_THAT(silent.ask(), IsEmpty());
  EXPECT_THAT(silent.lines, UnorderedElementsAreArray(lines));

  PlanRequest given(2, R"({"zero_optimization": {"stage": 0}, "fp16": {"enabled": true,
                           "hysteresis": 4, "consecutive_hysteresis": true}})");
  given.plan.plan.param_dtype = given.plan.plan.reduce_dtype = YOKE_F16;
  EXPECT_THAT(given.ask(),
              UnorderedElementsAre(
                  AllOf(HasSubstr("fp16.hysteresis = 4; no effect at ZeRO stage 0"),
                        HasSubstr("FP16_Optimizer")),
                  HasSubstr("fp16.consecutive_hysteresis = true; no effect at ZeRO stage 0")));
  EXPECT_THAT(given.lines, ::testing::IsSupersetOf(lines));
}

TEST(LossScale, NeedsNothingElseIfItIsStatic) {
  PlanRequest run(2, R"({"fp16": {"enabled": true, "loss_scale": 128, "hysteresis": 3}})");
  run.plan.plan.param_dtype = run.plan.plan.reduce_dtype = YOKE_F16;
  EXPECT_THAT(run.ask(), IsEmpty());
  EXPECT_THAT(run.lines,
              UnorderedElementsAre("precision.param = \"fp16\"",
                                   "loss_scale.static = 128.0",
                                   "parallel_backend = \"deepspeed_stub\""));
}

// Without a block fp16 in the file, the run decides.
TEST(LossScale, DoesNotExistWithoutFp16) {
  for (const char* json : {R"({"zero_optimization": {"stage": 1}})",
                           R"({"fp16": {"enabled": false, "hysteresis": 3}})",
                           R"({"fp16": {"enabled": "auto", "hysteresis": 3}})"}) {
    PlanRequest run(2, json);
    run.ask();
    for (const std::string& line : run.lines)
      EXPECT_THAT(line, Not(HasSubstr("loss_scale"))) << json;
  }
}

TEST(LossScale, BelongsToTheDtypeOfTheRun) {
  EXPECT_THAT(ask(R"({"fp16": {"enabled": true}})"),
              ElementsAre(AllOf(HasSubstr("fp16.enabled = true"),
                                HasSubstr("precision.param = \"fp32\""))));
  PlanRequest run(2, R"({"fp16": {"enabled": false}, "bf16": {"enabled": true}})");
  run.plan.plan.param_dtype = YOKE_F16;
  EXPECT_THAT(
      run.ask(),
      UnorderedElementsAre(HasSubstr("fp16.enabled = false"), HasSubstr("bf16.enabled = true")));
}

}  // namespace
}  // namespace yoke::deepspeed_stub::testing
