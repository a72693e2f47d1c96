// Makes plans from a run and a ds_config. The expected messages are those that users see.
#include "plugins/deepspeed_stub/plan.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <fstream>
#include <iterator>

#include "plugins/deepspeed_stub/config/keys.hpp"
#include "tests/unit/deepspeed_stub/plan_request.hpp"
#include "yoke/text.hpp"

namespace yoke::deepspeed_stub::testing {
namespace {

using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::StartsWith;
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

TEST(Plan, ADegreeThatContradictsTheStageOfTheFileIsRefusedWithTheFile) {
  PlanRequest run(2, R"({"zero_optimization": {"stage": 3}})");
  run.plan.plan.degree[YOKE_DP_REPLICATE] = 2;
  run.plan.plan.degree[YOKE_DP_SHARD] = 1;
  EXPECT_THAT(run.ask(),
              ElementsAre(AllOf(HasSubstr("zero_optimization.stage = 3; allowed: 0; the run has "
                                          "dp_degree = 2, but at ZeRO stage 3 all 2 rank(s)"),
                                StartsWith("config_file.file:")),
                          HasSubstr("dp_shards = 1; allowed: 2")));
  PlanRequest zero(2, "{}");
  zero.plan.plan.degree[YOKE_DP_SHARD] = 2;
  EXPECT_THAT(zero.ask(), ElementsAre(HasSubstr("zero_optimization.stage = unset; allowed: 1, 2")));
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

TEST(Plan, ANoteSaysIfDeepSpeedReducesInSixteenBits) {
  const auto notes = [](const std::string& file, int32_t param, int32_t reduce) {
    PlanRequest run(2, file);
    run.plan.plan.param_dtype = param;
    run.plan.plan.reduce_dtype = reduce;
    return run.ask();
  };
  const std::string bf16 = R"({"bf16": {"enabled": true})",
                    fp16 = R"({"fp16": {"enabled": "auto"})";
  const auto is_note = [](const char* dtype) {
    return ElementsAre(
        concat("note: config_file.file: communication_data_type = unset; gradients "
               "are reduced in fp32; DeepSpeed reduces them in ",
               dtype,
               ", as precision.reduce = \"",
               dtype,
               "\" does here"));
  };
  EXPECT_THAT(notes(bf16 + "}", YOKE_BF16, 0), is_note("bf16"));
  EXPECT_THAT(notes(fp16 + "}", YOKE_F16, YOKE_F32), is_note("fp16"));
  EXPECT_THAT(notes("", YOKE_BF16, 0), IsEmpty());
  EXPECT_THAT(notes("{}", YOKE_BF16, 0), IsEmpty()) << "DeepSpeed trains in fp32";
  EXPECT_THAT(notes(fp16 + "}", YOKE_F32, 0), IsEmpty());
  EXPECT_THAT(notes(bf16 + "}", YOKE_BF16, YOKE_BF16), IsEmpty());
  for (const char* key :
       {R"("communication_data_type": "fp32")", R"("data_types": {"grad_accum_dtype": "fp32"})"})
    EXPECT_THAT(notes(concat(bf16, ", ", key, "}"), YOKE_BF16, 0), IsEmpty());
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
                                   "train.eps = 1e-8",
                                   "train.weight_decay = 0.0",
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

TEST(Equivalents, OfAFileThatDoesNotClipSaySo) {
  const auto clip = [](const std::string& file) {
    PlanRequest run(2, file);
    run.ask();
    return run.clip;
  };
  EXPECT_THAT(clip(R"({"train_batch_size": 8})"), ElementsAre("train.clip = 0.0"));
  EXPECT_THAT(clip(R"({"gradient_clipping": "auto"})"), IsEmpty());
  EXPECT_THAT(clip(R"({"gradient_clipping": 0.5})"), IsEmpty());
  EXPECT_THAT(clip(""), IsEmpty()) << "there is no file";
}

TEST(Equivalents, DeriveTheBatchFromTheRanksIfTheFileLeavesItOut) {
  const auto batch_of = [](const std::string& json) {
    PlanRequest run(2, json);
    run.ask();
    std::vector<std::string> lines;
    for (const std::string& line : run.lines) {
      if (line.starts_with("train.global_batch")) lines.push_back(line);
    }
    return lines;
  };
  EXPECT_THAT(
      batch_of(R"({"train_micro_batch_size_per_gpu": 8, "gradient_accumulation_steps": 3})"),
      ElementsAre("train.global_batch = 48"));
  EXPECT_THAT(batch_of(R"({"train_micro_batch_size_per_gpu": 8})"),
              ElementsAre("train.global_batch = 16"));
  EXPECT_THAT(batch_of(R"({"train_micro_batch_size_per_gpu": 8,
                           "gradient_accumulation_steps": "auto"})"),
              IsEmpty())
      << "the run decides";
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
  // Unlike WarmupLR, it does not take the rate of the optimizer.
  EXPECT_THAT(lines_of(R"({"type": "WarmupDecayLR", "params": {"total_num_steps": 2000,
                           "warmup_min_lr": 1e-4}})"),
              UnorderedElementsAre("train.schedule = \"WarmupDecayLR\"",
                                   "lr_schedule.start_factor = 0.1",
                                   "train.lr = 0.001",
                                   "train.warmup = 1000",
                                   "lr_schedule.warmup_shape = \"log\"",
                                   "lr_schedule.total_steps = 2000",
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
                                   "lr_schedule.start_factor = 0.0",
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
