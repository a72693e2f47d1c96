// What a config for DeepSpeed means in a run file. tests/cli/accelerate_cli_test.cpp trains the
// result.
#include "plugins/accelerate_compat/deepspeed.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/unit/accelerate_compat/plan_request.hpp"

namespace yoke::accelerate_compat::testing {
namespace {

using ::testing::AllOf;
using ::testing::Contains;
using ::testing::ElementsAre;
using ::testing::EndsWith;
using ::testing::HasSubstr;
using ::testing::UnorderedElementsAre;

// The refusal to train the config, which every plan has.
const auto kUseImport = HasSubstr("yoke config import config_file.file > run.toml");

TEST(Deepspeed, KeysBecomeLinesOfARunFile) {
  PlanRequest run(2,
                  "distributed_type: DEEPSPEED\nmixed_precision: bf16\nnum_processes: 2\n"
                  "deepspeed_config: {zero_stage: 3, gradient_clipping: 0.5, "
                  "gradient_accumulation_steps: 2, offload_param_device: none, "
                  "offload_optimizer_device: nvme, offload_optimizer_nvme_path: /a/Disk}\n");
  EXPECT_THAT(run.ask(), ElementsAre(kUseImport));
  EXPECT_THAT(run.lines,
              UnorderedElementsAre(EndsWith("parallel_backend = \"deepspeed_stub\""),
                                   EndsWith("deepspeed_stub.zero_stage = 3"),
                                   EndsWith("offload_optimizer_device = \"nvme\""),
                                   EndsWith("offload_optimizer_nvme_path = \"/a/Disk\""),
                                   EndsWith("train.clip = 0.5"),
                                   EndsWith("train.micro_batch = 2"),
                                   EndsWith("dp_shards = 2"),
                                   EndsWith("precision.param = \"bf16\"")));
}

TEST(Deepspeed, HasTheDefaultsOfAccelerateAndTheLossScaleOfDeepSpeed) {
  PlanRequest run(2,
                  "distributed_type: DEEPSPEED\nmixed_precision: fp16\n"
                  "deepspeed_config: {gradient_accumulation_steps: 1, gradient_clipping: auto}\n");
  EXPECT_THAT(run.ask(), ElementsAre(kUseImport));
  EXPECT_THAT(run.lines,
              UnorderedElementsAre(EndsWith("parallel_backend = \"deepspeed_stub\""),
                                   EndsWith("deepspeed_stub.zero_stage = 2"),
                                   EndsWith("train.max_micro_batch = 1000000"),
                                   EndsWith("precision.param = \"fp16\""),
                                   EndsWith("loss_scale.static = 0.0"),
                                   EndsWith("loss_scale.rule = \"deepspeed\""),
                                   EndsWith("loss_scale.initial_power = 16"),
                                   EndsWith("loss_scale.window = 1000"),
                                   EndsWith("loss_scale.hysteresis = 2"),
                                   EndsWith("loss_scale.consecutive_hysteresis = false"),
                                   EndsWith("loss_scale.min = 1.0")));
}

TEST(Deepspeed, StageZeroScalesByTheRuleOfFp16Optimizer) {
  PlanRequest run(2,
                  "distributed_type: DEEPSPEED\nmixed_precision: fp16\n"
                  "deepspeed_config: {zero_stage: 0}\n");
  EXPECT_THAT(run.ask(), ElementsAre(kUseImport));
  EXPECT_THAT(run.lines, Contains(EndsWith("loss_scale.rule = \"fp16_optimizer\"")));
  EXPECT_THAT(run.lines, ::testing::Not(Contains(HasSubstr("hysteresis"))));
}

TEST(Deepspeed, StageZeroHasReplicas) {
  PlanRequest run(2,
                  "distributed_type: DEEPSPEED\nnum_processes: 2\n"
                  "deepspeed_config: {zero_stage: 0}\n");
  EXPECT_THAT(run.ask(), ElementsAre(kUseImport));
  EXPECT_THAT(run.lines, ::testing::Contains(EndsWith("dp_degree = 2")));
}

TEST(Deepspeed, DegreesOfTheRunMustFitTheStage) {
  PlanRequest run(2, "distributed_type: DEEPSPEED\ndeepspeed_config: {zero_stage: 3}\n");
  run.plan.plan.degree[YOKE_DP_REPLICATE] = 2;
  EXPECT_THAT(run.ask(),
              UnorderedElementsAre(AllOf(HasSubstr(":2: deepspeed_config.zero_stage = 3; allowed: "
                                                   "a zero_stage of 0"),
                                         HasSubstr("the run has dp_degree = 2, but at ZeRO stage "
                                                   "3 all ranks belong to dp_shards")),
                                   kUseImport));
  PlanRequest zero(2, "distributed_type: DEEPSPEED\ndeepspeed_config: {zero_stage: 0}\n");
  zero.plan.plan.degree[YOKE_DP_SHARD] = 2;
  EXPECT_THAT(zero.ask(), Contains(HasSubstr("the run has dp_shards = 2")));
}

TEST(Deepspeed, AFileExcludesInlineKeys) {
  PlanRequest run(2,
                  "distributed_type: DEEPSPEED\nmixed_precision: fp16\ndeepspeed_config:\n"
                  "  deepspeed_config_file: a/Ds.json\n  zero_stage: 2\n  gradient_clipping: 1\n");
  EXPECT_THAT(
      run.ask(),
      UnorderedElementsAre(AllOf(HasSubstr(":5: deepspeed_config.zero_stage = 2; allowed: unset"),
                                 HasSubstr("write it there")),
                           HasSubstr(":6: deepspeed_config.gradient_clipping = 1; allowed: unset"),
                           kUseImport));
  EXPECT_THAT(run.lines,
              UnorderedElementsAre(EndsWith("parallel_backend = \"deepspeed_stub\""),
                                   EndsWith("deepspeed_stub.config_file = \"a/Ds.json\""),
                                   EndsWith("precision.param = \"fp16\"")));
}

TEST(Deepspeed, WhatCannotBeHonouredIsRefusedByName) {
  EXPECT_THAT(
      ask("distributed_type: DEEPSPEED\nmixed_precision: fp8\nfsdp_config: {fsdp_version: 2}\n"
          "parallelism_config: {parallelism_config_tp_size: 2}\n"
          "deepspeed_config: {zero_stage: 4, offload_optimizer_device: disk, "
          "offload_param_device: nvme, zero_stge: 1}\n"),
      UnorderedElementsAre(
          HasSubstr(":2: mixed_precision = fp8; allowed: no, bf16, fp16"),
          HasSubstr(":3: fsdp_config.fsdp_version = 2; allowed: unset"),
          AllOf(HasSubstr("parallelism_config_tp_size = 2; allowed: 1"), HasSubstr("ZeRO")),
          HasSubstr("deepspeed_config.zero_stage = 4; allowed: 0, 1, 2, 3"),
          HasSubstr("offload_optimizer_device = disk; allowed: none, cpu, nvme"),
          AllOf(HasSubstr("offload_param_device = nvme; allowed: cpu"),
                HasSubstr("nvme needs deepspeed_config.offload_param_nvme_path")),
          AllOf(HasSubstr("deepspeed_config.zero_stge = 1"), HasSubstr("mean 'zero_stage'?")),
          kUseImport));
  for (const char* clip : {"-1", "nan", "much"})
    EXPECT_THAT(ask(std::string("distributed_type: DEEPSPEED\ndeepspeed_config: "
                                "{gradient_clipping: ") +
                    clip + "}\n"),
                ElementsAre(HasSubstr("allowed: a number from 0 on"), kUseImport));
  for (const char* steps : {"0", "3"})
    EXPECT_THAT(ask(std::string("distributed_type: DEEPSPEED\ndeepspeed_config: "
                                "{gradient_accumulation_steps: ") +
                    steps + "}\n"),
                ElementsAre(HasSubstr("train.global_batch is 8 on 2 rank(s)"), kUseImport));
}

}  // namespace
}  // namespace yoke::accelerate_compat::testing
