// Makes plans from a run and a ds_config. The expected messages are those that users see.
#include "plugins/deepspeed_stub/plan.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <fstream>
#include <iterator>

#include "plugins/deepspeed_stub/config/keys.hpp"
#include "tests/unit/deepspeed_stub/plan_request.hpp"

namespace yoke::deepspeed_stub::testing {
namespace {

using ::testing::AllOf;
using ::testing::Contains;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::UnorderedElementsAre;

// ---- Degrees and precision ----

TEST(Plan, AllRanksBecomeReplicasAtStage0AndShardsAbove) {
  for (const int stage : {0, 1, 2, 3}) {
    PlanRequest run(4, "{\"zero_optimization\": {\"stage\": " + std::to_string(stage) + "}}");
    EXPECT_THAT(run.ask(), IsEmpty());
    EXPECT_EQ(run.degree(YOKE_DP_REPLICATE), stage == 0 ? 4 : 1);
    EXPECT_EQ(run.degree(YOKE_DP_SHARD), stage == 0 ? 1 : 4);
    EXPECT_EQ(run.degree(YOKE_TP), 1);
  }
}

TEST(Plan, OtherDegreesAreRefusedAllAtOnce) {
  PlanRequest run(4);
  run.plan.options["zero_stage"] = "1";
  run.plan.plan.degree[YOKE_TP] = 2;
  run.plan.plan.degree[YOKE_DP_REPLICATE] = 2;
  EXPECT_THAT(run.ask(),
              ElementsAre(AllOf(HasSubstr("dp_degree = 2; allowed: 1"),
                                HasSubstr("at ZeRO stage 1 all 4 rank(s) belong to dp_shards")),
                          HasSubstr("tp_degree = 2; allowed: 1")));
}

TEST(Plan, PrecisionIsFp32Fp64OrSixteenBitsWithFp32Reduction) {
  PlanRequest run;
  run.plan.plan.param_dtype = YOKE_BF16;
  EXPECT_THAT(run.ask(), IsEmpty());
  run.plan.plan.reduce_dtype = YOKE_F64;
  EXPECT_THAT(run.ask(), ElementsAre(HasSubstr("precision.reduce = fp64; allowed: fp32, bf16")));
  run.plan.plan.param_dtype = YOKE_F16;
  EXPECT_THAT(run.ask(), ElementsAre(HasSubstr("precision.reduce = fp64; allowed: fp32, fp16")));
  for (const int32_t reduce : {YOKE_F32, YOKE_F16}) {
    run.plan.plan.reduce_dtype = reduce;
    EXPECT_THAT(run.ask(), IsEmpty());
  }
  run.plan.plan.param_dtype = YOKE_I32;
  EXPECT_THAT(run.ask(), ElementsAre(HasSubstr("precision.param = int32")));
}

// ---- Lines of a run file that replace the ds_config ----

TEST(Equivalents, HaveALineForEveryKeyWithAnEffect) {
  PlanRequest run(4, R"({"train_batch_size": 32, "train_micro_batch_size_per_gpu": 4,
                   "gradient_accumulation_steps": 2, "gradient_clipping": 0.5,
                   "optimizer": {"type": "Adam", "params": {"lr": 0.003, "betas": [0.9, 0.95]}},
                   "bf16": {"enabled": true}, "steps_per_print": 10,
                   "zero_optimization": {"stage": 3, "overlap_comm": true,
                                         "reduce_bucket_size": 5e8}})");
  run.ask();
  EXPECT_THAT(run.lines,
              UnorderedElementsAre("train.global_batch = 32",
                                   "dp_shards = 4",
                                   "train.micro_batch = 4",
                                   "train.clip = 0.5",
                                   "train.optimizer = \"adamw\"",
                                   "train.lr = 0.003",
                                   "train.betas = [0.9,0.95]",
                                   "precision.param = \"bf16\"",
                                   "parallel_backend = \"deepspeed_stub\"",
                                   "deepspeed_stub.zero_stage = 3",
                                   "deepspeed_stub.overlap_comm = true",
                                   "deepspeed_stub.reduce_bucket_size = 500000000"));
}

TEST(Equivalents, HaveNoLineForAutoAndForInlineKeys) {
  PlanRequest run(2,
                  R"({"train_batch_size": "auto", "zero_optimization": {"overlap_comm": true}})");
  run.plan.options["zero_stage"] = "2";
  run.ask();
  EXPECT_THAT(
      run.lines,
      ElementsAre("parallel_backend = \"deepspeed_stub\"", "deepspeed_stub.overlap_comm = true"));
}

// ---- The file ----

TEST(DsConfig, RefusesWhatIsNotJsonWithItsPosition) {
  EXPECT_THAT(ask("{\n  \"train_batch_size\": 8,\n  oops\n}"),
              ElementsAre(AllOf(HasSubstr("deepspeed_stub.config_file = config_file.file"),
                                HasSubstr("config_file.file, line 3, column 3: syntax error"))));
  EXPECT_THAT(ask("[1]"), ElementsAre(HasSubstr("its top level is of type array")));
}

TEST(DsConfig, AKeyGivenTwiceIsRefused) {
  EXPECT_THAT(ask(R"({"zero_optimization": {"stage": 1, "overlap_comm": true, "stage": 2}})"),
              ElementsAre(HasSubstr("zero_optimization.stage = given twice")));
}

TEST(DsConfig, AnUnknownKeyIsRefusedWithTheNearestOne) {
  EXPECT_THAT(ask(R"({"zero_optimisation": {}, "zero_optimization": {"stge": 1}})"),
              UnorderedElementsAre(AllOf(HasSubstr("config_file.file: zero_optimisation"),
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
              "allgather_bucket_size": 3, "offload_optimizer": {"device": "nvme"},
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
          HasSubstr("offload_optimizer.device = \"nvme\"; allowed: \"none\""),
          HasSubstr("zero_quantized_weights = true; allowed: false"),
          HasSubstr("mics_shard_size = 2; allowed: -1"),
          HasSubstr("overlap_comm = \"yes\"; allowed: true | false")));
}

// ---- Scheduler ----

std::vector<std::string> lines_of(const std::string& scheduler) {
  PlanRequest request(2,
                      R"({"optimizer": {"params": {"lr": 0.5}}, "scheduler": )" + scheduler + "}");
  request.plan.optimizer.lr = 0;  // as in an import
  EXPECT_THAT(request.ask(), IsEmpty()) << scheduler;
  return request.lines;
}

TEST(Scheduler, BecomesKeysOfTheRunFile) {
  EXPECT_THAT(
      lines_of(R"({"type": "WarmupDecayLR", "params": {"warmup_min_lr": 1e-4, "warmup_max_lr": 2e-4,
                   "warmup_num_steps": 1e2, "total_num_steps": 400}})"),
      UnorderedElementsAre("train.schedule = \"WarmupDecayLR\"",
                           "lr_schedule.start_factor = 0.5",
                           "train.lr = 0.0002",
                           "train.warmup = 100",
                           "lr_schedule.warmup_shape = \"log\"",
                           "lr_schedule.total_steps = 400",
                           "parallel_backend = \"deepspeed_stub\""));
}

TEST(Scheduler, HasDeepSpeedsDefaults) {
  EXPECT_THAT(lines_of(R"({"type": "WarmupLR"})"),
              UnorderedElementsAre("train.schedule = \"WarmupLR\"",
                                   "lr_schedule.start_factor = 0.0",
                                   "train.lr = 0.5",
                                   "train.warmup = 1000",
                                   "lr_schedule.warmup_shape = \"log\"",
                                   "parallel_backend = \"deepspeed_stub\""));
  EXPECT_THAT(lines_of(R"({"type": "LRRangeTest"})"),
              UnorderedElementsAre("train.schedule = \"LRRangeTest\"",
                                   "train.lr = 0.001",
                                   "lr_schedule.range_steps = 2000",
                                   "lr_schedule.range_rate = 1.0",
                                   "lr_schedule.staircase = false",
                                   "parallel_backend = \"deepspeed_stub\""));
}

TEST(Scheduler, LeavesAutoToTheRun) {
  EXPECT_THAT(lines_of(R"({"type": "WarmupDecayLR", "params": {"warmup_min_lr": "auto",
                           "warmup_max_lr": "auto", "warmup_num_steps": "auto",
                           "total_num_steps": "auto", "warmup_type": "linear"}})"),
              UnorderedElementsAre("train.schedule = \"WarmupDecayLR\"",
                                   "train.lr = 0.5",
                                   "lr_schedule.warmup_shape = \"linear\"",
                                   "parallel_backend = \"deepspeed_stub\""));
}

TEST(Scheduler, RefusesWhatDeepSpeedsClassWouldNotTake) {
  EXPECT_THAT(
      ask(R"({"scheduler": {"type": "WarmupDecayLR", "params": {"cos_min_ratio": 0.1}}})"),
      UnorderedElementsAre(
          AllOf(HasSubstr("cos_min_ratio = 0.1"), HasSubstr("WarmupDecayLR has no such parameter")),
          AllOf(HasSubstr("total_num_steps = unset"), HasSubstr("WarmupDecayLR requires it"))));
  EXPECT_THAT(ask(R"({"scheduler": {"type": "OneCycle", "params": {"cycle_min_lr": 1e-4,
                      "cycle_max_lr": 3e-3}}})"),
              ElementsAre(AllOf(HasSubstr("cycle_momentum = unset; allowed: false"),
                                HasSubstr("DeepSpeed's default is true"))));
  EXPECT_THAT(ask(R"({"scheduler": {"type": "WarmupLR", "params": {"warmup_max_lr": 1}}})"),
              ElementsAre(AllOf(HasSubstr("warmup_max_lr = 1"),
                                HasSubstr("the run has train.lr = 0.003"))));
}

TEST(DsConfig, AcceptsHarmlessValuesAndNotesKeysWithoutEffect) {
  EXPECT_THAT(ask(R"({"fp16": {"enabled": false}, "steps_per_print": 10, "zero_optimization":
                      {"stage": 2, "offload_param": {"device": "none", "pin_memory": true},
                       "contiguous_gradients": true, "stage3_max_live_parameters": 1e9}})"),
              UnorderedElementsAre(
                  HasSubstr("note: config_file.file: steps_per_print = 10; no effect here"),
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
                        HasSubstr("config_file.file: zero_optimization.stage = 2; remove one"))));
  run.plan.options["zero_stage"] = "2";
  EXPECT_THAT(run.ask(), IsEmpty());
}

// ---- The batch rule; the global batch is 8 ----

TEST(Batch, ComputesTheUnsetFactor) {
  for (const auto& [json, micro] :
       {std::pair{R"({"train_micro_batch_size_per_gpu": 2})", 2},
        {R"({"gradient_accumulation_steps": 4})", 1},
        {R"({"train_micro_batch_size_per_gpu": 1, "gradient_accumulation_steps": 4})", 1},
        {R"({"train_batch_size": 8})", 4},
        {R"({})", 0}}) {
    PlanRequest run(2, json);
    EXPECT_THAT(run.ask(), IsEmpty()) << json;
    EXPECT_EQ(run.plan.plan.micro_batch, micro) << json;
  }
}

TEST(Batch, RefusesAFactorThatDoesNotDivideWithTheNearestValues) {
  EXPECT_THAT(ask(R"({"train_micro_batch_size_per_gpu": 3})"),
              ElementsAre(AllOf(
                  HasSubstr("train_micro_batch_size_per_gpu = 3"),
                  HasSubstr("train batch 8 / (train_micro_batch_size_per_gpu 3 x 2 data ranks = 6) "
                            "leaves a remainder of 2"),
                  HasSubstr("nearest: train.global_batch = 6 or 12, or "
                            "train_micro_batch_size_per_gpu = 2 or 4"))));
}

TEST(Batch, RefusesAProductThatIsNotTheBatchWithEveryFix) {
  EXPECT_THAT(ask(R"({"train_batch_size": 8, "train_micro_batch_size_per_gpu": 2,
              "gradient_accumulation_steps": 4})"),
              ElementsAre(AllOf(
                  HasSubstr("train_micro_batch_size_per_gpu 2 x gradient_accumulation_steps 4 "
                            "x 2 data ranks = 16, but the batch is 8"),
                  HasSubstr("train.global_batch = 16"),
                  HasSubstr("train_micro_batch_size_per_gpu = 1"),
                  HasSubstr("gradient_accumulation_steps = 2"))));
}

TEST(Batch, NeverOverridesTheMicroBatchOfTheRun) {
  PlanRequest run(2, R"({"train_micro_batch_size_per_gpu": 2})");
  run.plan.plan.micro_batch = 4;
  EXPECT_THAT(run.ask(),
              ElementsAre(AllOf(HasSubstr("train_micro_batch_size_per_gpu = 2; allowed: 4"),
                                HasSubstr("the run has train.micro_batch = 4"))));
  for (const char* steps : {"0", "-1", "5e9", "18446744073709551615"}) {
    EXPECT_THAT(ask(std::string("{\"gradient_accumulation_steps\": ") + steps + "}"),
                ElementsAre(HasSubstr("1 to 1000000")))
        << steps;
  }
}

// ---- The table of keys ----

TEST(Keys, TheReadmeHasEveryRow) {
  std::ifstream in(std::string(std::getenv("YOKE_SOURCE")) + "/plugins/deepspeed_stub/README.md");
  const std::string readme((std::istreambuf_iterator<char>(in)), {});
  const std::map<Handling, std::string> words = {{Handling::kHonoured, "honoured"},
                                                 {Handling::kRun, "the run's"},
                                                 {Handling::kNoEffect, "no effect"},
                                                 {Handling::kRefused, "refused"}};
  for (const Key& key : keys()) {
    if (key.handling == Handling::kSection) continue;
    std::string word = words.at(key.handling);
    if (key.handling == Handling::kRefused) word += " unless `" + std::string(key.value) + "`";
    const std::string row =
        "| `" + std::string(key.path) + "` | " + word + " | " + std::string(key.why) + " |\n";
    EXPECT_NE(readme.find(row), std::string::npos) << row;
  }
}

TEST(Keys, HarmlessValuesAreJson) {
  for (const Key& key : keys()) {
    if (key.handling == Handling::kSection || key.handling == Handling::kNoEffect) continue;
    EXPECT_TRUE(nlohmann::json::accept(key.value)) << key.path;
  }
}

}  // namespace
}  // namespace yoke::deepspeed_stub::testing
