// Tests what a run of the real program reports about a pipeline.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/cli/metrics_rows.hpp"
#include "tests/cli/playground.hpp"

namespace yoke::testing {
namespace {

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
