// An evaluation that takes minutes: its progress is shown on a terminal, and Ctrl-C ends it.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/cli/metrics_rows.hpp"
#include "tests/cli/playground.hpp"

namespace yoke::testing {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

// A run whose evaluation after its first step has some 20,000 batches.
class LongEvaluation : public ::testing::TestWithParam<int> {
 protected:
  LongEvaluation() {
    std::string text;
    for (int i = 0; text.size() < 3'000'000; ++i) text += "the ox " + std::to_string(i) + "; ";
    here_.folder().write("text.txt", text);
  }
  // Returns the command line of the run, for a shell. On a busy machine, several threads of a rank
  // would wait for each other for most of the time.
  std::string command(const std::string& more) const {
    return "OMP_NUM_THREADS=1 " + Playground::program() +
           " train run.toml data.holdout=0.9 run.dir=runs/r " + more + " --nproc " +
           std::to_string(GetParam());
  }
  SubprocessResult shell(const std::string& script) const {
    SubprocessOptions options;
    options.limit = std::chrono::seconds(1200);  // a limit for hangs
    return run_subprocess(
        {"/bin/bash", "-c", "cd " + here_.folder().path().string() + "\n" + script}, options);
  }

  Playground here_;
};

// The signal comes when the first step is in metrics.jsonl.
TEST_P(LongEvaluation, IsLeftByCtrlC) {
  const SubprocessResult r = shell(command("eval.every=1") + R"( > out 2> err & run=$!
    until grep -q '"step":1' runs/r/metrics.jsonl 2> /dev/null; do sleep 0.05; done
    sleep 0.5; kill -INT $run; wait $run)");
  const std::string log = read_file(here_.folder() / "out") + read_file(here_.folder() / "err");
  EXPECT_EQ(r.ending.exit_code, 130) << log;
  EXPECT_THAT(log,
              AllOf(HasSubstr("the evaluation after step 1 was left out, because the run stops"),
                    HasSubstr("stopped after step 1; to continue, run the same command with "
                              "checkpoint.resume=auto")));
  EXPECT_EQ(metrics_rows(here_.folder() / "runs/r").size(), 1u) << "there is no evaluation loss";
  // The run was saved and continues.
  const SubprocessResult more = shell(command("train.steps=2 checkpoint.resume=auto"));
  EXPECT_TRUE(more.ending.ok()) << more.err;
  EXPECT_EQ(losses_by_step(here_.folder() / "runs/r").size(), 2u);
}

// The evaluation after the last step completes the run, which a signal does not change.
TEST_P(LongEvaluation, OfTheLastStepIsCompleted) {
  const SubprocessResult r = shell(command("eval.every=1 eval.batches=8000 train.steps=1") +
                                   R"( > out 2> err & run=$!
    until grep -q '"step":1' runs/r/metrics.jsonl 2> /dev/null; do sleep 0.05; done
    kill -INT $run; wait $run)");
  EXPECT_EQ(r.ending.exit_code, 130) << read_file(here_.folder() / "err");
  EXPECT_THAT(read_file(here_.folder() / "out"), HasSubstr("trained on 4 sequences"));
  EXPECT_EQ(metrics_rows(here_.folder() / "runs/r").size(), 2u) << "a step and its evaluation";
}

TEST_P(LongEvaluation, ShowsItsProgressOnATerminal) {
  const SubprocessResult r =
      shell("script -qec '" + command("eval.every=1 eval.batches=500 train.steps=1") +
            "' /dev/null < /dev/null");
  EXPECT_TRUE(r.ending.ok()) << r.out;
  EXPECT_THAT(r.out,
              AllOf(::testing::ContainsRegex("evaluating [0-9]+/500 \\[#*-+\\]"),
                    HasSubstr("saving the checkpoint of step 1")));
}

INSTANTIATE_TEST_SUITE_P(Ranks, LongEvaluation, ::testing::Values(1, 2));

}  // namespace
}  // namespace yoke::testing
