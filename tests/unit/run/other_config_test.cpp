#include "core/run/other_config.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace yoke {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;

std::vector<std::string> faults(const std::string& line, const RunConfig& run = {}) {
  return disagreements({.refusals = {}, .notes = {{"ds.json: a.b", "7", line, ""}}}, run);
}

TEST(OtherConfig, EveryKeyThatNoPlanHasMustAgree) {
  EXPECT_THAT(faults("train.warmup = 7"),
              ElementsAre("ds.json: a.b (7) means train.warmup = 7, but the run has train.warmup = "
                          "0; give it in one of them only"));
  RunConfig run;
  run.other_config = "check";
  EXPECT_THAT(faults("train.warmup = 7", run),
              ElementsAre(::testing::EndsWith("warmup = 0; write that line into the run file")));
  run.train.warmup = 7;
  EXPECT_THAT(faults("train.warmup = 7", run), IsEmpty());
  EXPECT_EQ(faults("train.schedule = \"WarmupLR\"").size(), 1u);
  EXPECT_EQ(faults("lr_schedule.warmup_shape = \"log\"").size(), 1u);
  EXPECT_EQ(faults("precision.product = \"fp8\"").size(), 1u);
  EXPECT_EQ(faults("lr_schedule.cycles = 2").size(), 1u) << "it is unset in the run";
  EXPECT_EQ(faults("lr_schedule.warmup_shape = \"cubic\"").size(), 1u) << "no run has that";
}

TEST(OtherConfig, ACommentIsNoLine) {
  EXPECT_FALSE(value_of({"ds.json: a.b", "7", "# it means train.warmup = 7", ""}).has_value());
  EXPECT_TRUE(value_of({"ds.json: a.b", "7", "train.warmup = 7", ""}).has_value());
}

TEST(OtherConfig, NumbersAreComparedByValue) {
  RunConfig run;
  run.train.lr = 1;
  EXPECT_THAT(faults("train.lr = 1.0", run), IsEmpty());
  EXPECT_THAT(faults("train.lr = 1", run), IsEmpty());
}

// 1e-6 / 1e-5 is not the double that 0.1 is.
TEST(OtherConfig, NumbersMayDifferByRounding) {
  RunConfig run;
  run.train.min_lr_factor = 0.1;
  EXPECT_THAT(faults("train.min_lr_factor = 0.09999999999999999", run), IsEmpty());
  EXPECT_EQ(faults("train.min_lr_factor = 0.0999999", run).size(), 1u);
  run.train.min_lr_factor = 0;
  EXPECT_EQ(faults("train.min_lr_factor = 1e-300", run).size(), 1u);
}

TEST(OtherConfig, AScheduleEndsWithTheRunIfItsEndIsUnset) {
  RunConfig run;
  run.train.steps = 7;
  EXPECT_THAT(faults("lr_schedule.total_steps = 7", run), IsEmpty());
  run.lr_schedule.total_steps = 8;
  EXPECT_EQ(faults("lr_schedule.total_steps = 7", run).size(), 1u);
}

TEST(OtherConfig, AKeyThatTheBackendRefusesIsReportedOnce) {
  const PlanRemark note{"ds.json: a.b", "7", "train.warmup = 7", ""};
  EXPECT_THAT(disagreements({.refusals = {note}, .notes = {note}}, RunConfig()), IsEmpty());
}

// A run without a recipe has the recipe tensorwise.
TEST(OtherConfig, RecipesAndSkippedMatricesOfFp8MustAgree) {
  EXPECT_THAT(faults("precision.fp8_recipe = \"tensorwise\""), IsEmpty());
  EXPECT_EQ(faults("precision.fp8_recipe = \"rowwise\"").size(), 1u);
  EXPECT_THAT(faults("precision.fp8_skip = [\"lm_head\"]"), IsEmpty());
  EXPECT_EQ(faults("precision.fp8_skip = [\"layers.0\", \"lm_head\"]").size(), 1u);
}

TEST(OtherConfig, OtherKeysAreComparedByTheBackend) {
  EXPECT_THAT(faults("train.global_batch = 7"), IsEmpty());
  EXPECT_THAT(faults("deepspeed_stub.zero_stage = 3"), IsEmpty());
  EXPECT_THAT(faults(""), IsEmpty());
}

// A run that sets train.lr and leaves the other keys unset.
LoadedConfig run_with_a_rate() {
  LoadedConfig config;
  config.values = {{"train.lr", "3e-4", "run.toml:1"},
                   {"train.clip", "1.0", "default"},
                   {"train.micro_batch", "", "default"},
                   {"lr_schedule.cycles", "", "default"},
                   {"model.layers", "", "default"},
                   {"data.seq_len", "256", "default"}};
  return config;
}

std::vector<std::string> filled(const std::vector<std::string>& lines) {
  PlanResult report;
  for (const std::string& line : lines) report.notes.push_back({"ds.json: k", "7", line, ""});
  std::vector<std::string> texts;
  for (const OtherValue& v : unset_keys(report, run_with_a_rate()))
    texts.push_back(v.key + " = " + v.text + " of " + v.origin);
  return texts;
}

TEST(OtherConfig, SetsTheKeysOfTrainingThatAreUnset) {
  EXPECT_THAT(
      filled({"train.clip = 2.0", "lr_schedule.cycles = 3"}),
      ElementsAre("train.clip = 2.0 of ds.json: k", "lr_schedule.cycles = 3 of ds.json: k"));
  EXPECT_THAT(filled({"train.lr = 0.5"}), IsEmpty()) << "the run sets it";
  EXPECT_THAT(filled({"train.clip = 1"}), IsEmpty()) << "it is the default";
  EXPECT_THAT(filled({"train.clip = 2.0", "train.clip = 3.0"}),
              ElementsAre("train.clip = 2.0 of ds.json: k"));
  EXPECT_THAT(filled({"train.micro_batch = 2", "model.layers = 9", "data.seq_len = 32"}),
              IsEmpty());
  EXPECT_THAT(filled({"parallel_backend = \"ptd\"", "ptd.pp_cut = \"1\"", "", "gibberish"}),
              IsEmpty());
}

TEST(OtherConfig, WithAValueThatNoRunHasIsNotIgnored) {
  EXPECT_THAT(filled({"train.clip = \"much\""}),
              ElementsAre("train.clip = \"much\" of ds.json: k"));
}

TEST(OtherConfig, SaysWhatTheRunDoesNotUse) {
  const auto note = [](const std::string& line) {
    return unused_note({.refusals = {}, .notes = {{"ds.json: k", "7", line, ""}}}, RunConfig());
  };
  EXPECT_THAT(note("seed = 9"), ::testing::EndsWith("run file: seed = 9 (ds.json: k)"));
  EXPECT_THAT(note("train.steps = 9"), ::testing::EndsWith("train.steps = 9 (ds.json: k)"));
  EXPECT_THAT(note("eval.every = 9"), ::testing::EndsWith("eval.every = 9 (ds.json: k)"));
  EXPECT_EQ(note("seed = 1"), "") << "the run has it";
  EXPECT_EQ(note("train.clip = 9.0"), "") << "the run uses it, or the plan refuses it";
}

}  // namespace
}  // namespace yoke
