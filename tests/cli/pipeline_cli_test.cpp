// Tests what a run of the real program reports about a pipeline.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/cli/metrics_rows.hpp"
#include "tests/cli/playground.hpp"

namespace yoke::testing {
namespace {

using ::testing::AllOf;
using ::testing::ContainsRegex;
using ::testing::HasSubstr;
using ::testing::Not;

TEST(Pipeline, ReportsItsStagesAndItsBubble) {
  const Playground here;
  const SubprocessResult r = here.yoke({"train",
                                        "run.toml",
                                        "parallel_backend=ptd",
                                        "pp_degree=2",
                                        "dp_shards=2",
                                        "model.layers=2",
                                        "ptd.pp_cut=1,3",
                                        "--nproc",
                                        "4"});
  ASSERT_EQ(r.ending.exit_code, 0) << r.err;
  EXPECT_THAT(r.out,
              ContainsRegex("pp rank 0  1 block, [0-9,.M]+ parameters; memory: parameters "));
  EXPECT_THAT(r.out,
              ContainsRegex("pp rank 1  3 blocks, [0-9,.M]+ parameters; memory: parameters "));
  EXPECT_THAT(r.out, ContainsRegex("comm: [0-9.]+%  bubble: [0-9.]+%"));
  const nlohmann::json last = metrics_rows(here.folder() / "runs/r").back();
  EXPECT_GT(last["bubble_percent"], 0);
  EXPECT_NEAR(
      last["bubble_percent"].get<double>(),
      100 * last["comm"]["pp"]["seconds"].get<double>() / last["step_seconds"].get<double>(),
      1e-6);
}

TEST(Pipeline, IsNotReportedWhereThereIsNone) {
  const Playground here;
  const SubprocessResult r =
      here.yoke({"train", "run.toml", "parallel_backend=ptd", "dp_shards=2", "--nproc", "2"});
  ASSERT_EQ(r.ending.exit_code, 0) << r.err;
  EXPECT_THAT(r.out, Not(HasSubstr("bubble")));
  EXPECT_THAT(r.out, Not(HasSubstr("pp rank")));
}

// The ranks of different stages issue different collectives, so their reports are not compared.
TEST(Pipeline, ReportsAboutAHangNameThePpRank) {
  const Playground here;
  const std::string yoke = Playground::program();
  const SubprocessResult r = run_subprocess(
      {"/bin/bash",
       "-c",
       "cd " + here.folder().path().string() + "; export OMP_NUM_THREADS=1; " + yoke +
           " train run.toml run.dir=runs/asked parallel_backend=ptd pp_degree=2 model.layers=2 "
           "train.steps=1000000 checkpoint.every=0 --nproc 2 >out 2>&1 & pid=$!; "
           "seen() { [ -s runs/asked/$1 ] || ! kill -0 $pid; }; "
           "until seen metrics.jsonl; do sleep 0.05; done; "
           "pkill -QUIT -f -- '[-]-rank . .*runs/asked'; for rank in 0 1; do "
           "until seen logs/hang_rank_00$rank.json; do sleep 0.05; done; done; "
           "kill -TERM $pid; wait $pid; " +
           yoke + " doctor runs/asked"});
  EXPECT_THAT(r.out,
              AllOf(ContainsRegex("rank 0 [(][^ ]+[)] of pp rank 0: step "),
                    ContainsRegex("rank 1 [(][^ ]+[)] of pp rank 1: step ")));
}

class CheckedPipeline : public ::testing::TestWithParam<std::string> {};

// Every message is compared with its partner, in schedules that receive ahead of time as well.
TEST_P(CheckedPipeline, ExchangesTheMessagesThatBothSidesExpect) {
  const Playground here;
  for (const char* ranks : {"--nproc", "--virtual"}) {
    const SubprocessResult r = here.yoke({"train",
                                          "run.toml",
                                          "parallel_backend=ptd",
                                          "pp_degree=2",
                                          "model.layers=2",
                                          "comm.check=full",
                                          "ptd.pp_schedule=" + GetParam(),
                                          ranks,
                                          "2"});
    EXPECT_EQ(r.ending.exit_code, 0) << r.err;
  }
}

INSTANTIATE_TEST_SUITE_P(Schedules,
                         CheckedPipeline,
                         ::testing::Values("1f1b", "zb_h1", "interleaved", "zb_v"),
                         [](const auto& info) { return info.param; });

}  // namespace
}  // namespace yoke::testing
