// Degrees of a run that contradict its Accelerate config.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/unit/accelerate_compat/plan_request.hpp"

namespace yoke::accelerate_compat::testing {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

const std::string kDdp = "distributed_type: MULTI_CPU\n";
const std::string kFsdp = "distributed_type: FSDP\n";

TEST(Degrees, ADegreeOfTheRunMayNotTakeTheRanksOfTheType) {
  struct Case {
    std::string file;
    int axis;
    std::vector<std::string> parts;
  };
  const std::string no_shard = kFsdp + "fsdp_config: {fsdp_sharding_strategy: NO_SHARD}\n";
  const std::string hybrid = kFsdp + "fsdp_config: {fsdp_sharding_strategy: HYBRID_SHARD}\n";
  const std::string ones =
      kFsdp +
      "fsdp_config: {fsdp_version: 2}\nparallelism_config: {parallelism_config_tp_size: 1, "
      "parallelism_config_dp_shard_size: 1}\n";
  for (const Case& c : std::vector<Case>{
           {kFsdp,
            YOKE_DP_REPLICATE,
            {"dp_degree = 2; allowed: 1 or unset; ",
             ":1: distributed_type = FSDP requires otherwise"}},
           {ones, YOKE_DP_REPLICATE, {"dp_degree = 2; allowed: 1 or unset"}},
           {ones,
            YOKE_TP,
            {"tp_degree = 2; allowed: 1 or unset", "tp_size = 1 requires otherwise"}},
           {hybrid, YOKE_DP_REPLICATE, {"dp_degree = 2; allowed: a smaller", "requests shards"}},
           {kFsdp, YOKE_TP, {"tp_degree = 2; allowed: a smaller", "FSDP requests shards"}},
           {no_shard, YOKE_TP, {"tp_degree = 2; allowed: a smaller", "FSDP requests replicas"}},
           {no_shard, YOKE_DP_SHARD, {"dp_shards = 2; allowed: 1 or unset", "requires otherwise"}},
           {kDdp, YOKE_CP, {"cp_degree = 2; allowed: a smaller", "MULTI_CPU requests replicas"}},
           {kDdp, YOKE_DP_SHARD, {"dp_shards = 2; allowed: 1 or unset", "requires otherwise"}}}) {
    PlanRequest run(2, c.file);
    run.plan.plan.degree[c.axis] = 2;
    const std::vector<std::string> refusals = run.ask();
    ASSERT_EQ(refusals.size(), 1u) << c.file << c.axis;
    for (const std::string& part : c.parts) EXPECT_THAT(refusals[0], HasSubstr(part)) << c.file;
  }
  PlanRequest ring(2, kFsdp);
  ring.plan.plan.degree[YOKE_CP] = 2;
  EXPECT_THAT(ring.ask(), IsEmpty()) << "the ranks of cp hold shards";
}

TEST(Degrees, AVariableThatRequestsFsdpIsNamed) {
  PlanRequest run(2, "");
  run.plan.options["environment"] = "ACCELERATE_USE_FSDP=true\n";
  run.plan.plan.degree[YOKE_DP_REPLICATE] = 2;
  EXPECT_THAT(run.ask(), ElementsAre(HasSubstr("ACCELERATE_USE_FSDP = true requires otherwise")));
}

}  // namespace
}  // namespace yoke::accelerate_compat::testing
