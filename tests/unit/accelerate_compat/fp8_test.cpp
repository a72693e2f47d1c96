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
              ElementsAre(AllOf(HasSubstr("mixed_precision = fp8; allowed: \"no\" (fp32)"),
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

// Returns the request of a run in bf16 with gathers in fp8.
std::string gathers(const std::string& more) {
  return "mixed_precision: fp8\nfp8_config: {enable_fsdp_float8_all_gather: true}\n" + more;
}

TEST(Fp8, GathersAreThoseOfPtd) {
  const std::string fsdp = "distributed_type: FSDP\nfsdp_config: {fsdp_version: 2}\n";
  PlanRequest run(4, gathers(fsdp));
  run.plan.plan.param_dtype = YOKE_BF16;
  EXPECT_THAT(run.ask(), ::testing::Not(::testing::Contains(HasSubstr("no effect"))));
  EXPECT_EQ(run.inner_options["fp8_gather"], "1");
  EXPECT_THAT(run.lines, ::testing::Contains(HasSubstr("= true -> ptd.fp8_gather = true")));

  PlanRequest tp(4,
                 gathers(fsdp + "parallelism_config: {parallelism_config_tp_size: 2, "
                                "parallelism_config_dp_shard_size: 2}\n"));
  tp.plan.plan.param_dtype = YOKE_BF16;
  EXPECT_THAT(tp.ask(), ::testing::Contains(HasSubstr("no effect with tp")));
  EXPECT_EQ(tp.inner_options["fp8_gather"], "0");

  PlanRequest one(1, gathers(fsdp)), replicas(2, gathers(kDdp));
  for (PlanRequest* whole : {&one, &replicas}) {
    whole->plan.plan.param_dtype = YOKE_BF16;
    EXPECT_THAT(whole->ask(), ::testing::Contains(HasSubstr("no effect: nothing is sharded")));
    EXPECT_NE(whole->inner_options["fp8_gather"], "1");
  }
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
