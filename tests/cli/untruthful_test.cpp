// Runs of the real program with a backend that does not do what it says: the host notices, names
// the lie and saves nothing that could not be resumed.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>
#include <nlohmann/json.hpp>
#include <sstream>

#include "tests/cli/playground.hpp"

namespace yoke::testing {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::Not;

class Untruthful : public ::testing::Test {
 protected:
  SubprocessResult train(const std::vector<std::string>& more) const {
    std::vector<std::string> args = {"train", "run.toml", "parallel_backend=" YOKE_UNTRUTHFUL};
    args.insert(args.end(), more.begin(), more.end());
    return here.yoke(args);
  }
  bool saved() const {
    return std::filesystem::exists(here.folder() / "runs/r/checkpoints/step-00000002");
  }
  // Returns the lines of metrics.jsonl that have this key.
  std::vector<double> metric(const std::string& key, const std::string& run = "runs/r") const {
    std::istringstream lines(read_file(here.folder() / (run + "/metrics.jsonl")));
    std::vector<double> values;
    for (std::string line; std::getline(lines, line);) {
      const auto json = nlohmann::json::parse(line);
      if (json.contains(key)) values.push_back(json[key]);
    }
    return values;
  }

  const Playground here;
};

TEST_F(Untruthful, MayNotChangeInThePlanWhatTheUserHasSet) {
  const struct {
    const char *lie, *set, *text;
  } cases[] = {
      {"batch", "train.steps=4", "train.global_batch = 4, which plan changed to 2"},
      {"degree", "dp_degree=2", "dp_degree = 2, which plan changed to 1"},
      {"optimizer", "train.steps=4", "plan changed the optimizer"},
      {"reduce", "train.steps=4", "precision.reduce became unknown dtype (2457); allowed: fp64"},
  };
  for (const auto& c : cases) {
    const SubprocessResult r =
        train({std::string("untruthful.lie=") + c.lie, c.set, "--nproc", "2"});
    EXPECT_EQ(r.ending.exit_code, 3) << c.lie << r.err;
    EXPECT_THAT(r.err,
                AllOf(HasSubstr("backend 'untruthful': "),
                      HasSubstr(c.text),
                      HasSubstr("this is a fault of the backend")));
    EXPECT_FALSE(std::filesystem::exists(here.folder() / "runs/r")) << c.lie;
  }
}

TEST_F(Untruthful, MustReportItsWholeStateBeforeTheFirstStep) {
  const std::pair<const char*, const char*> cases[] = {
      {"no_param", "'param' of 'lm_head.weight' is missing"},
      {"no_moment", "'exp_avg_sq' of 'lm_head.weight' is missing"},
      {"no_step", "'step' of 'optimizer' is missing"},
      {"undeclared",
       "'undeclared' of 'lm_head.weight' is a kind that the description of the "
       "backend does not declare"},
  };
  for (const auto& [lie, text] : cases) {
    const SubprocessResult r = train({std::string("untruthful.lie=") + lie, "--nproc", "2"});
    EXPECT_EQ(r.ending.exit_code, 1) << lie << r.err;
    EXPECT_THAT(r.err, AllOf(HasSubstr("not complete: "), HasSubstr(text))) << lie;
    EXPECT_THAT(r.out, Not(HasSubstr("step:  1"))) << lie;
    EXPECT_FALSE(saved()) << lie;
  }
}

TEST_F(Untruthful, MustSaveTheStepOfTheRun) {
  const SubprocessResult r = train({"untruthful.lie=wrong_step"});
  EXPECT_EQ(r.ending.exit_code, 1) << r.err;
  EXPECT_THAT(r.err,
              HasSubstr("the backend saves step 3 of the optimizer after step 2 of the run"));
  EXPECT_FALSE(saved());
}

TEST_F(Untruthful, MustReportPossibleResultsAndTheSameOnEveryRank) {
  SubprocessResult r = train({"untruthful.lie=negative_norm"});
  EXPECT_EQ(r.ending.exit_code, 1);
  EXPECT_THAT(r.err, HasSubstr("step 1: the backend reports the gradient norm -"));

  r = train({"untruthful.lie=own_loss", "--nproc", "2"});
  EXPECT_EQ(r.ending.exit_code, 1);
  EXPECT_THAT(r.err,
              AllOf(HasSubstr("the ranks report different results: rank 0 step 1: loss_sum "),
                    HasSubstr("; rank 1 step 1: loss_sum ")));
  EXPECT_FALSE(saved());
}

TEST_F(Untruthful, StateOfTheRanksIsResumedOnAsManyRanksAndElseStartsAnew) {
  ASSERT_EQ(train({"train.steps=2", "--nproc", "2"}).ending.exit_code, 0);
  const SubprocessResult verified =
      here.yoke({"checkpoint", "verify", "runs/r/checkpoints/step-00000002"});
  EXPECT_EQ(verified.ending.exit_code, 0) << verified.err;
  const std::string resume = "checkpoint.resume=runs/r/checkpoints/step-00000002";
  SubprocessResult r = train({resume, "run.dir=runs/two", "train.steps=3", "--nproc", "2"});
  ASSERT_EQ(r.ending.exit_code, 0) << r.err;
  // Rank 0 adds 1 in every step.
  EXPECT_THAT(metric("untruthful.error", "runs/two"), ::testing::ElementsAre(3));
  EXPECT_THAT(r.err + r.out, Not(HasSubstr("starts anew")));

  r = train({resume, "run.dir=runs/one", "train.steps=3"});
  ASSERT_EQ(r.ending.exit_code, 0) << r.err;
  EXPECT_THAT(metric("untruthful.error", "runs/one"), ::testing::ElementsAre(1));
  EXPECT_THAT(r.err + r.out,
              HasSubstr("this run has 1 rank(s), so the state 'error' (of 2 ranks) of the "
                        "checkpoint is left out and starts anew"));
}

TEST_F(Untruthful, ReportsSpansAndMetricsOfItsOwn) {
  ASSERT_EQ(train({"profile.steps=2,3"}).ending.exit_code, 0);
  const auto trace =
      nlohmann::json::parse(read_file(here.folder() / "runs/r/profile/rank_000.json"));
  int inside = 0;
  double begin = 0, end = 0;
  for (const auto& event : trace.at("traceEvents")) {
    if (event.value("name", "") != "ProfilerStep#2") continue;
    begin = event.at("ts");
    end = begin + event.at("dur").get<double>();
  }
  for (const auto& event : trace.at("traceEvents")) {
    if (event.value("cat", "") != "backend") continue;
    EXPECT_EQ(event.at("name"), "whole step");
    const double from = event.at("ts"), to = from + event.at("dur").get<double>();
    inside += from >= begin && to <= end ? 1 : 0;
  }
  EXPECT_EQ(inside, 1) << "the clocks of the spans and of the profiler agree";
}

TEST_F(Untruthful, TooManyEventsAreDroppedAndCounted) {
  const SubprocessResult r = train({"untruthful.lie=events", "profile.steps=1,1", "train.steps=1"});
  ASSERT_EQ(r.ending.exit_code, 0) << r.err;
  // One span, and all metrics but the first 64.
  EXPECT_THAT(r.err + r.out,
              HasSubstr("untruthful: 99938 spans or metrics of rank 0 were dropped"));
  EXPECT_EQ(metric("untruthful.error63").size(), 1u);
  EXPECT_EQ(metric("untruthful.error64").size(), 0u);
}

// Not a lie, but a device that fails while step 3 runs.
TEST_F(Untruthful, WhoseDeviceFailsIsExplainedAndTheRunCanContinue) {
  const std::string weights = "/checkpoints/step-00000004/model.safetensors";
  for (const char* ranks : {"1", "2"}) {
    const std::string dir = std::string("runs/") + ranks, whole = dir + "-whole";
    ASSERT_EQ(train({"--nproc", ranks, "run.dir=" + whole}).ending.exit_code, 0);

    const SubprocessResult r =
        train({"--nproc", ranks, "run.dir=" + dir, "untruthful.lie=device_error"});
    EXPECT_EQ(r.ending.exit_code, 1) << r.err;
    const auto record = nlohmann::json::parse(read_file(here.folder() / (dir + "/exit.json")));
    EXPECT_EQ(record.at("code"), 1);
    EXPECT_EQ(record.at("step"), 2);
    for (const std::string& text : {r.err, record.at("reason").get<std::string>()}) {
      EXPECT_THAT(text,
                  AllOf(HasSubstr("CUDA error: uncorrectable ECC error encountered: the memory of "
                                  "this GPU has a fault"),
                        HasSubstr("; to continue, run the same command with "
                                  "checkpoint.resume=auto"),
                        Not(HasSubstr("CUDA_LAUNCH_BLOCKING"))));
    }
    const SubprocessResult verified =
        here.yoke({"checkpoint", "verify", dir + "/checkpoints/step-00000002"});
    EXPECT_EQ(verified.ending.exit_code, 0) << verified.err;

    const SubprocessResult resumed =
        train({"--nproc", ranks, "run.dir=" + dir, "checkpoint.resume=auto"});
    ASSERT_EQ(resumed.ending.exit_code, 0) << resumed.err;
    EXPECT_THAT(resumed.out, HasSubstr("step-00000002"));
    EXPECT_EQ(metric("loss", dir).size(), 4u);
    EXPECT_EQ(metric("loss", dir), metric("loss", whole));
    EXPECT_EQ(read_file(here.folder() / (dir + weights)),
              read_file(here.folder() / (whole + weights)));
  }
}

// Not a lie, but a crash.
TEST_F(Untruthful, ThatCrashesIsReportedWithTheFunction) {
  for (const char* ranks : {"1", "2"}) {
    const SubprocessResult r = train({"untruthful.lie=crash", "--nproc", ranks});
    EXPECT_EQ(r.ending.exit_code, 5);
    EXPECT_THAT(r.err,
                AllOf(HasSubstr("was killed by signal 11 (SIGSEGV)"),
                      HasSubstr("crashed inside step of the backend; innermost functions first:\n"),
                      HasSubstr("  untruthful.so+0x")));
  }
}

}  // namespace
}  // namespace yoke::testing
