// What a Megatron command line with FSDP becomes, and what is refused. These plans have no host
// that could open ptd.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/unit/megatron_compat/plan_request.hpp"

namespace yoke::megatron_compat::testing {
namespace {

using ::testing::Contains;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::Not;

TEST(Fsdp, IsDelegatedAndTranslated) {
  PlanRequest request(
      "--use-megatron-fsdp --data-parallel-sharding-strategy optim_grads_params "
      "--use-distributed-optimizer --ckpt-format fsdp_dtensor --overlap-grad-reduce");
  EXPECT_THAT(request.ask(),
              ElementsAre(HasSubstr("--overlap-grad-reduce = on; no effect"),
                          HasSubstr("the loss is the mean over all targets of a step"),
                          HasSubstr("ptd; allowed: a backend that can be used")));
  EXPECT_EQ(request.degree(YOKE_DP_SHARD), 2);
  EXPECT_EQ(request.line("megatron_compat.use_megatron_fsdp"), "true");
  EXPECT_EQ(request.line("megatron_compat.data_parallel_sharding_strategy"),
            "\"optim_grads_params\"");
  EXPECT_EQ(request.line("megatron_compat.loss"), "\"per_token\"");

  PlanRequest optimizer("--use-megatron-fsdp --data-parallel-sharding-strategy optim");
  EXPECT_THAT(optimizer.ask(), IsEmpty());
  EXPECT_EQ(optimizer.degree(YOKE_DP_SHARD), 2);
  PlanRequest none("--use-custom-fsdp --data-parallel-sharding-strategy no_shard");
  EXPECT_THAT(none.ask(), IsEmpty());
  EXPECT_EQ(none.degree(YOKE_DP_REPLICATE), 2);
}

TEST(Fsdp, IsRefusedWithTheReason) {
  const struct {
    const char* arguments;
    const char* message;
  } cases[] = {
      {"--use-megatron-fsdp", "no_shard, optim or optim_grads_params; releases have different"},
      {"--use-megatron-fsdp --data-parallel-sharding-strategy optim_grads",
       "--data-parallel-sharding-strategy = optim_grads; allowed: "
       "no_shard,optim,optim_grads_params"},
      {"--use-megatron-fsdp --data-parallel-sharding-strategy no_shard --use-distributed-optimizer",
       "--use-distributed-optimizer = on; no effect with --data-parallel-sharding-strategy"},
      {"--use-torch-fsdp2 --calculate-per-token-loss", "Megatron leaves this out"},
      {"--use-torch-fsdp2 --bf16", "gradients are reduced in fp32"},
      {"--use-megatron-fsdp --data-parallel-sharding-strategy optim --outer-dp-sharding-strategy "
       "optim",
       "--outer-dp-sharding-strategy = optim; allowed: no_shard"},
      {"--use-torch-fsdp2 --use-custom-fsdp", "it contradicts --use-torch-fsdp2"},
      {"--use-torch-fsdp2 --use-distributed-optimizer", "shards the optimizer itself"},
      {"--use-torch-fsdp2 --num-distributed-optimizer-instances 2", "shards over all data ranks"},
      {"--use-torch-fsdp2 --pipeline-model-parallel-size 2", "pp_degree = 2; allowed: 1; FSDP"},
      {"--use-torch-fsdp2 --recompute-granularity full --recompute-method block "
       "--recompute-num-layers 1",
       "each layer is computed again, or none"},
      {"--torch-fsdp2-no-reshard-after-forward", "no effect without --use-torch-fsdp2"},
      {"--data-parallel-sharding-strategy optim", "no effect without --use-megatron-fsdp"},
  };
  for (const auto& c : cases)
    EXPECT_THAT(PlanRequest(c.arguments).ask(), Contains(HasSubstr(c.message))) << c.arguments;
  EXPECT_THAT(PlanRequest("--use-megatron-fsdp --data-parallel-sharding-strategy all").ask(),
              Not(Contains(HasSubstr("releases have different defaults"))));
  PlanRequest even("--use-torch-fsdp2");
  even.options["loss"] = "even";
  EXPECT_THAT(even.ask(), Contains(HasSubstr("megatron_compat.loss = even; allowed: per_token")));
  PlanRequest tied("--use-torch-fsdp2");
  tied.model.erase(tied.model.find("--untie-embeddings-and-output-weights"),
                   std::string("--untie-embeddings-and-output-weights").size());
  EXPECT_THAT(tied.ask(), Contains(HasSubstr("only for models with --untie-embeddings")));
}

}  // namespace
}  // namespace yoke::megatron_compat::testing
