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
                          "0; write that line into the run file, or remove the key"));
  RunConfig run;
  run.train.warmup = 7;
  EXPECT_THAT(faults("train.warmup = 7", run), IsEmpty());
  EXPECT_EQ(faults("train.schedule = \"WarmupLR\"").size(), 1u);
  EXPECT_EQ(faults("lr_schedule.warmup_shape = \"log\"").size(), 1u);
  EXPECT_EQ(faults("precision.product = \"fp8\"").size(), 1u);
  EXPECT_EQ(faults("lr_schedule.cycles = 2").size(), 1u) << "it is unset in the run";
  EXPECT_EQ(faults("lr_schedule.warmup_shape = \"cubic\"").size(), 1u) << "no run has that";
}

TEST(OtherConfig, NumbersAreComparedByValue) {
  RunConfig run;
  run.train.lr = 1;
  EXPECT_THAT(faults("train.lr = 1.0", run), IsEmpty());
  EXPECT_THAT(faults("train.lr = 1", run), IsEmpty());
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

TEST(OtherConfig, OtherKeysAreComparedByTheBackend) {
  EXPECT_THAT(faults("train.global_batch = 7"), IsEmpty());
  EXPECT_THAT(faults("deepspeed_stub.zero_stage = 3"), IsEmpty());
  EXPECT_THAT(faults(""), IsEmpty());
}

}  // namespace
}  // namespace yoke
