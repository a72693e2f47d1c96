// Reads ds_configs. The expected messages are those that users see.
#include "plugins/deepspeed_stub/config/ds_config.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/unit/deepspeed_stub/plan_request.hpp"
#include "yoke/text.hpp"

namespace yoke::deepspeed_stub::testing {
namespace {

using ::testing::AllOf;
using ::testing::Contains;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::UnorderedElementsAre;

TEST(DsConfig, RefusesWhatIsNotJsonWithItsPosition) {
  EXPECT_THAT(ask("{\n  \"train_batch_size\": 8,\n  oops\n}"),
              ElementsAre(AllOf(HasSubstr("deepspeed_stub.config_file = config_file.file"),
                                HasSubstr("config_file.file, line 3, column 3: syntax error"))));
  EXPECT_THAT(ask("[1]"), ElementsAre(HasSubstr("its top level is of type array")));
}

TEST(DsConfig, TheConfigOfAModelIsRefusedAsAWhole) {
  EXPECT_THAT(ask(R"({"model_type": "llama", "hidden_size": 64, "num_hidden_layers": 2})"),
              ElementsAre("deepspeed_stub.config_file = config_file.file; allowed: a "
                          "ds_config.json; this is the config of a model; model.config is the "
                          "key for it"));
  EXPECT_THAT(ask(R"({"a": 1, "b": 2, "c": {"d": 3}})"),
              ElementsAre(HasSubstr("DeepSpeed has none of the keys of the file")));
  EXPECT_THAT(ask(R"({"a": 1, "b": 2, "zero_optimization": {"stage": 1}})"),
              UnorderedElementsAre(HasSubstr(":1: a = 1"), HasSubstr(":1: b = 2")));
}

TEST(DsConfig, ParametersOfAnOtherOptimizerAreNotRefusedOneByOne) {
  EXPECT_THAT(ask(R"({"optimizer": {"type": "OneBitAdam", "params": {"freeze_step": 400}}})"),
              UnorderedElementsAre(
                  AllOf(HasSubstr("optimizer.type = \"OneBitAdam\"; allowed: \"AdamW\""),
                        HasSubstr("no other optimizer of DeepSpeed is supported")),
                  "note: config_file.file:1: optimizer.params.freeze_step = 400; no effect: it "
                  "belongs to an optimizer that is not supported"));
  EXPECT_THAT(ask(R"({"optimizer": {"type": "LION", "params": {"freeze_step": 400}}})"),
              Contains(HasSubstr("freeze_step = 400; allowed: a key of DeepSpeed")));
}

TEST(DsConfig, ASectionThatIsNoObjectIsRefused) {
  for (const char* section : {"optimizer", "scheduler", "fp16", "bf16", "zero_optimization"}) {
    for (const char* value : {"[]", "[1]", "3", "\"a\""})
      EXPECT_THAT(ask(concat("{\"", section, "\": ", value, "}")),
                  ElementsAre(AllOf(HasSubstr(concat(":1: ", section, " = ", value)),
                                    HasSubstr("write an object, { }, with its keys"))))
          << section << value;
  }
}

TEST(DsConfig, AKeyIsNamedWithItsLine) {
  EXPECT_THAT(
      ask("{\n\"zero_optimization\":\n{\"stage\": 1,\r\n\n \"cpu_offload\"\n: true}, "
          "\"amp\": {\"enabled\":\n true}}"),
      UnorderedElementsAre(HasSubstr("config_file.file:5: zero_optimization.cpu_offload = true"),
                           HasSubstr("config_file.file:6: amp.enabled = true")));
}

TEST(DsConfig, AKeyWithoutALineIsExplained) {
  PlanRequest run(2, R"({"train_batch_size": "auto", "bf16": {}, "amp": null,
      "fp16": {"enabled": false, "loss_scale": 0, "hysteresis": 2}, "zero_optimization":
      {"zero_quantized_weights": false, "stage3_gather_16bit_weights_on_model_save": "auto"},
      "scheduler": {"type": "WarmupLR", "params": {"warmup_max_lr": 3e-3}},
      "optimizer": {"type": "AdamW", "params": {"betas": [0.9, 0.95], "weight_decay": 0.1,
                                                "lr": 1, "adam_w_mode": true}}})");
  EXPECT_THAT(run.ask(), IsEmpty());
  EXPECT_THAT(
      run.comments,
      UnorderedElementsAre(
          HasSubstr(":1: train_batch_size = \"auto\"# the run decides ("),
          HasSubstr(":1: bf16 = {}# the same as unset"),
          HasSubstr(":1: amp = null# the same as unset"),
          HasSubstr("fp16.enabled = false# needs no line of its own ("),
          HasSubstr("fp16.loss_scale = 0# no effect: it applies only in fp16"),
          HasSubstr("fp16.hysteresis = 2# no effect: it applies only in fp16 with a dynamic"),
          HasSubstr("quantized_weights = false# the only value that is supported: ZeRO++"),
          HasSubstr("model_save = \"auto\"# no effect here: checkpoints always"),
          HasSubstr("params.lr = 1# no effect: scheduler.params.warmup_max_lr sets the rate"),
          HasSubstr("adam_w_mode = true# needs no line of its own (")));
}

TEST(DsConfig, ParametersOfAScheduleNeedItsType) {
  EXPECT_THAT(ask(R"({"scheduler": {"params": {"warmup_num_steps": 3}}})"),
              Contains(AllOf(HasSubstr("note: "),
                             HasSubstr("params.warmup_num_steps = 3"),
                             HasSubstr("no effect without scheduler.type"))));
  PlanRequest run(2);
  run.plan.options["scheduler.params.warmup_num_steps"] = "3";
  EXPECT_THAT(run.ask(),
              ElementsAre(HasSubstr("deepspeed_stub.scheduler.params.warmup_num_steps = 3; "
                                    "allowed: unset; no effect without scheduler.type")));
}

TEST(DsConfig, AKeyGivenTwiceIsRefused) {
  EXPECT_THAT(ask(R"({"zero_optimization": {"stage": 1, "overlap_comm": true, "stage": 2}})"),
              ElementsAre(HasSubstr("zero_optimization.stage = given twice")));
}

TEST(DsConfig, AnUnknownKeyIsRefusedWithTheNearestOne) {
  EXPECT_THAT(ask(R"({"zero_optimisation": {}, "zero_optimization": {"stge": 1}})"),
              UnorderedElementsAre(AllOf(HasSubstr("config_file.file:1: zero_optimisation"),
                                         HasSubstr("did you mean 'zero_optimization'?")),
                                   AllOf(HasSubstr("zero_optimization.stge = 1"),
                                         HasSubstr("did you mean 'stage'?"))));
}

TEST(DsConfig, AutoAndNullCountAsNotGiven) {
  EXPECT_THAT(ask(R"({"train_batch_size": "auto", "gradient_clipping": "auto", "bf16":
                      {"enabled": "auto"}, "zero_optimization": {"overlap_comm": null},
                      "optimizer": {"type": "AdamW", "params": {"lr": "auto", "betas": "auto"}},
                      "scheduler": null})"),
              IsEmpty());
}

TEST(DsConfig, ReportsEveryProblemAtOnce) {
  EXPECT_THAT(
      ask(R"({"train_batch_size": 9, "fp16": {"enabled": true}, "bf16": {"enabled": true},
              "scheduler": {"type": "WarmUpLR"}, "optimizer": {"type": "OneBitAdam"},
              "gradient_clipping": 0.5, "zero_optimization": {"stage": 4, "reduce_bucket_size": 0,
              "allgather_bucket_size": 3, "offload_optimizer": {"super_offload": true},
              "zero_quantized_weights": true, "mics_shard_size": 2, "overlap_comm": "yes"}})"),
      UnorderedElementsAre(
          AllOf(HasSubstr("train_batch_size = 9; allowed: 8"), HasSubstr("train.global_batch = 8")),
          AllOf(HasSubstr("fp16.enabled = true"), HasSubstr("precision.param = \"fp32\"")),
          HasSubstr("fp16.enabled and bf16.enabled = true; allowed: one of them"),
          AllOf(HasSubstr("bf16.enabled = true"), HasSubstr("precision.param = \"fp32\"")),
          AllOf(HasSubstr("scheduler.type = \"WarmUpLR\""), HasSubstr("did you mean 'WarmupLR'?")),
          HasSubstr("optimizer.type = \"OneBitAdam\"; allowed: \"AdamW\", \"Adam\", \"Lion\""),
          AllOf(HasSubstr("gradient_clipping = 0.5"), HasSubstr("train.clip = 1.0")),
          HasSubstr("zero_optimization.stage = 4; allowed: 0, 1, 2, 3"),
          HasSubstr("reduce_bucket_size = 0; allowed: 1 or more"),
          HasSubstr("allgather_bucket_size = 3; allowed: a multiple of 2"),
          HasSubstr("offload_optimizer.super_offload = true; allowed: false"),
          HasSubstr("zero_quantized_weights = true; allowed: false"),
          HasSubstr("mics_shard_size = 2; allowed: -1"),
          HasSubstr("overlap_comm = \"yes\"; allowed: true | false")));
}

TEST(DsConfig, AcceptsHarmlessValuesAndNotesKeysWithoutEffect) {
  EXPECT_THAT(ask(R"({"fp16": {"enabled": false}, "steps_per_print": 10, "zero_optimization":
                      {"stage": 2, "offload_param": {"device": "none", "pin_memory": true},
                       "contiguous_gradients": true, "stage3_max_live_parameters": 1e9}})"),
              UnorderedElementsAre(
                  HasSubstr("note: config_file.file:1: steps_per_print = 10; no effect here"),
                  HasSubstr("offload_param.pin_memory"),
                  HasSubstr("contiguous_gradients"),
                  HasSubstr("stage3_max_live_parameters = 1000000000; no effect at ZeRO stage 2")));
}

TEST(DsConfig, MayRepeatTheValuesOfTheRun) {
  EXPECT_THAT(ask(R"({"train_batch_size": 8, "gradient_clipping": 1, "communication_data_type":
                      "fp32", "bf16": {"enabled": false}, "optimizer": {"type": "adam", "params":
                      {"lr": 0.003, "betas": [0.9, 0.95], "eps": 1e-8, "weight_decay": 0.1}}})"),
              IsEmpty());
  EXPECT_THAT(ask(R"({"optimizer": {"params": {"lr": 0.1, "betas": [0.9, 0.999]}}})"),
              UnorderedElementsAre(
                  AllOf(HasSubstr("lr = 0.1"), HasSubstr("the run has train.lr = 0.003")),
                  AllOf(HasSubstr("betas = [0.9,0.999]"), HasSubstr("train.betas = [0.9,0.95]"))));
}

TEST(DsConfig, AnInlineKeyIsTheSameKey) {
  PlanRequest run(2, R"({"zero_optimization": {"stage": 2}})");
  run.plan.options["reduce_bucket_size"] = "0";
  EXPECT_THAT(run.ask(), ElementsAre(HasSubstr("deepspeed_stub.reduce_bucket_size = 0")));
  run.plan.options = {{"config_file", R"({"zero_optimization": {"stage": 2}})"},
                      {"zero_stage", "3"}};
  EXPECT_THAT(
      run.ask(),
      ElementsAre(AllOf(HasSubstr("deepspeed_stub.zero_stage = 3"),
                        HasSubstr("config_file.file:1: zero_optimization.stage = 2; remove one"))));
  run.plan.options["zero_stage"] = "2";
  EXPECT_THAT(run.ask(), IsEmpty());
}

}  // namespace
}  // namespace yoke::deepspeed_stub::testing
