#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/unit/accelerate_compat/plan_request.hpp"

namespace yoke::accelerate_compat::testing {
namespace {

using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

const std::string kDdp = "distributed_type: MULTI_CPU\n";
const std::string kFsdp = "distributed_type: FSDP\n";

TEST(Fp16, IsThatOfTheRunWithTheScaleOfGradScaler) {
  const std::string fp16 = "mixed_precision: fp16\n";
  EXPECT_THAT(ask(kDdp + fp16),
              ElementsAre(AllOf(HasSubstr("mixed_precision = fp16; allowed: \"no\" (fp32)"),
                                HasSubstr("precision.param=fp16"))));
  PlanRequest run(2, kDdp + fp16);
  run.plan.plan.param_dtype = YOKE_F16;
  run.plan.plan.reduce_dtype = 0;
  EXPECT_THAT(run.ask(), ::testing::IsEmpty());
  EXPECT_EQ(run.plan.plan.reduce_dtype, YOKE_F16) << "the reducer adds in the gradients' own dtype";
  EXPECT_THAT(run.lines,
              ::testing::IsSupersetOf(
                  {HasSubstr("mixed_precision = fp16 -> precision.param = \"fp16\""),
                   HasSubstr("mixed_precision = fp16 -> loss_scale.static = 0.0"),
                   HasSubstr("mixed_precision = fp16 -> loss_scale.rule = \"grad_scaler\""),
                   HasSubstr("mixed_precision = fp16 -> loss_scale.initial_power = 16"),
                   HasSubstr("mixed_precision = fp16 -> loss_scale.window = 2000")}));
}

TEST(Fp16, IsRefusedIfTheConfigHasAnotherPrecision) {
  for (const char* other : {"'no'", "bf16"}) {
    PlanRequest run(2, kDdp + "mixed_precision: " + other + "\n");
    run.plan.plan.param_dtype = YOKE_F16;
    run.plan.plan.reduce_dtype = 0;
    EXPECT_THAT(run.ask(), ElementsAre(HasSubstr("allowed: fp16; the run has precision.param")));
  }
}

TEST(Fp16, OfFsdpIsReducedInFp32UnlessTheRunSaysOtherwise) {
  PlanRequest run(2, kFsdp + "mixed_precision: fp16\n");
  run.plan.plan.param_dtype = YOKE_F16;
  run.plan.plan.reduce_dtype = YOKE_F32;
  EXPECT_THAT(run.ask(), ElementsAre(HasSubstr("Accelerate reduces them in fp16")));
}

}  // namespace
}  // namespace yoke::accelerate_compat::testing
