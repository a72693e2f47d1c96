#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/unit/accelerate_compat/plan_request.hpp"

namespace yoke::accelerate_compat::testing {
namespace {

using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::UnorderedElementsAre;

const std::string kDdp = "distributed_type: MULTI_CPU\n";

TEST(Fp8, IsThatOfProducts) {
  const std::string yaml = kDdp + "mixed_precision: fp8\n";
  EXPECT_THAT(ask(yaml),
              ElementsAre(AllOf(HasSubstr("mixed_precision = fp8; allowed: no"),
                                HasSubstr("precision.param=bf16"))));
  PlanRequest run(2, yaml + "fp8_config: {backend: AO, pad_inner_dim: false}\n");
  run.plan.plan.param_dtype = YOKE_BF16;
  EXPECT_THAT(run.ask(), ::testing::IsEmpty());
  EXPECT_THAT(
      run.lines,
      ::testing::IsSupersetOf(
          {HasSubstr("mixed_precision = fp8 -> precision.param = \"bf16\""),
           HasSubstr("mixed_precision = fp8 -> precision.product = \"fp8\""),
           HasSubstr("-> precision.fp8_recipe = \"tensorwise\""),
           HasSubstr("-> precision.fp8_skip = [\"layers.0.self_attn.q_proj\", \"lm_head\"]")}));
}

TEST(Fp8, OfOtherProgramsIsRefused) {
  for (const char* other : {"TE", "MSAMP"}) {
    PlanRequest run(2, kDdp + "mixed_precision: fp8\nfp8_config: {backend: " + other + "}\n");
    run.plan.plan.param_dtype = YOKE_BF16;
    EXPECT_THAT(run.ask(),
                ::testing::Contains(
                    HasSubstr(std::string("fp8_config.backend = ") + other + "; allowed: AO")));
  }
}

TEST(Fp8, HasNoLinesWithoutIt) {
  PlanRequest run(2, kDdp + "mixed_precision: bf16\nfp8_config: {backend: AO}\n");
  run.plan.plan.param_dtype = YOKE_BF16;
  EXPECT_THAT(run.ask(), ElementsAre(HasSubstr("applies only with mixed_precision fp8")));
  for (const std::string& line : run.lines)
    EXPECT_THAT(line, ::testing::Not(HasSubstr("precision.product")));
}

}  // namespace
}  // namespace yoke::accelerate_compat::testing
