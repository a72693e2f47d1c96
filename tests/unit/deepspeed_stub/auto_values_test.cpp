// What "auto" means, compared with numbers worked out by hand. tests/oracle/deepspeed_oracle.py
// compares it with transformers and Accelerate.
#include "plugins/deepspeed_stub/config/auto_values.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/unit/deepspeed_stub/plan_request.hpp"

namespace yoke::deepspeed_stub::testing {
namespace {

using ::testing::AllOf;
using ::testing::Contains;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::UnorderedElementsAre;

constexpr const char* kSizes =
    R"({"zero_optimization": {"stage": 3, "reduce_bucket_size": "auto",
                              "stage3_prefetch_bucket_size": "auto",
                              "stage3_param_persistence_threshold": "auto"}})";

// A plan for a model whose first block passes on `bytes` bytes for a sequence of 10 tokens.
struct SizedRequest : PlanRequest {
  SizedRequest(const std::string& json, int64_t bytes) : PlanRequest(2, json) {
    block.carry_bytes = bytes;
    blocks[0] = &block;
    summary.seq_len = 10;
    summary.blocks = blocks.data();
  }
  YokeBlock block = *summary.blocks[0];
  std::vector<const YokeBlock*> blocks{summary.blocks, summary.blocks + summary.num_blocks};
};

TEST(AutoValues, OfSizesFollowFromTheHiddenSize) {
  SizedRequest run(kSizes, 10 * 7 * 4);
  EXPECT_THAT(run.ask(), IsEmpty());
  EXPECT_THAT(run.lines,
              UnorderedElementsAre("parallel_backend = \"deepspeed_stub\"",
                                   "deepspeed_stub.zero_stage = 3",
                                   "deepspeed_stub.reduce_bucket_size = 49",
                                   "deepspeed_stub.stage3_prefetch_bucket_size = 44",
                                   "deepspeed_stub.stage3_param_persistence_threshold = 70"));
  SizedRequest half(kSizes, 10 * 4096 * 2);
  half.plan.plan.param_dtype = YOKE_BF16;
  EXPECT_THAT(half.ask(), IsEmpty());
  EXPECT_THAT(half.lines, Contains("deepspeed_stub.reduce_bucket_size = 16777216"));
  EXPECT_THAT(half.lines, Contains("deepspeed_stub.stage3_prefetch_bucket_size = 15099494"));
}

TEST(AutoValues, OfSizesAreRefusedForAModelWithoutHiddenSize) {
  EXPECT_THAT(ask(kSizes),
              UnorderedElementsAre(
                  AllOf(HasSubstr("zero_optimization.reduce_bucket_size = \"auto\""),
                        HasSubstr("which this model does not report; write a number")),
                  HasSubstr("zero_optimization.stage3_prefetch_bucket_size = \"auto\""),
                  HasSubstr("zero_optimization.stage3_param_persistence_threshold = \"auto\"")));
  EXPECT_THAT(SizedRequest(kSizes, 10 * 7 * 4 + 1).ask(), ::testing::SizeIs(3))
      << "the output of the block is not a whole number for each token";
}

TEST(AutoValues, OfAnInlineKeyAreNotUsed) {
  SizedRequest run(R"({"zero_optimization": {"stage": 2, "stage3_prefetch_bucket_size": "auto"}})",
                   10 * 7 * 4);
  run.plan.options["stage3_prefetch_bucket_size"] = "100";
  EXPECT_THAT(
      run.ask(),
      ElementsAre(HasSubstr("deepspeed_stub.stage3_prefetch_bucket_size = 100; no effect")));
}

TEST(AutoValues, OfOtherKeysAreFixed) {
  PlanRequest run(2,
                  R"({"zero_optimization": {"stage": "auto",
                      "offload_optimizer": {"device": "auto", "nvme_path": "auto"},
                      "offload_param": {"device": "auto", "nvme_path": "auto"},
                      "stage3_gather_16bit_weights_on_model_save": "auto"}})");
  EXPECT_THAT(run.ask(), IsEmpty());
  EXPECT_THAT(run.lines,
              UnorderedElementsAre("parallel_backend = \"deepspeed_stub\"",
                                   "deepspeed_stub.zero_stage = 2"));
}

TEST(AutoValues, AreRefusedByNameWhereNeitherProgramReplacesThem) {
  const std::pair<const char*, const char*> cases[] = {
      {R"({"optimizer": {"type": "auto"}})", "optimizer.type = \"auto\"; allowed: a string; "},
      {R"({"fp16": "auto"})", "fp16 = \"auto\"; allowed: an object; "},
      {R"({"bfloat16": {"enabled": "auto"}})",
       "bfloat16.enabled = \"auto\"; allowed: true | false"},
      {R"({"fp16": {"loss_scale": "auto"}})", "fp16.loss_scale = \"auto\"; allowed: a number; "},
      {R"({"communication_data_type": "auto"})", "communication_data_type = \"auto\""},
      {R"({"zero_optimization": {"overlap_comm": "auto"}})", "overlap_comm = \"auto\""},
      {R"({"zero_optimization": {"sub_group_size": "auto"}})", "sub_group_size = \"auto\""},
      {R"({"zero_optimization": {"cpu_offload": "auto"}})", "cpu_offload = \"auto\""}};
  for (const auto& [json, message] : cases)
    EXPECT_THAT(ask(json),
                ElementsAre(AllOf(HasSubstr(message),
                                  HasSubstr("neither transformers nor Accelerate replaces"))))
        << json;
}

}  // namespace
}  // namespace yoke::deepspeed_stub::testing
