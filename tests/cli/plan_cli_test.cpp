// `yoke plan` with the real worker and backends.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <filesystem>
#include <map>
#include <nlohmann/json.hpp>

#include "tests/cli/metrics_rows.hpp"
#include "tests/cli/playground.hpp"

namespace yoke::testing {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::Not;
using Json = nlohmann::json;

const std::vector<std::string> kPipeline{"plan",
                                         "run.toml",
                                         "parallel_backend=ptd",
                                         "model.layers=4",
                                         "train.global_batch=16",
                                         "train.micro_batch=1",
                                         "pp_degree=2"};

std::vector<std::string> pipeline(const std::vector<std::string>& more) {
  std::vector<std::string> args = kPipeline;
  args.insert(args.end(), more.begin(), more.end());
  return args;
}

TEST(Plan, ShowsMemoryTrafficAndTheSchedule) {
  const Playground here;
  const SubprocessResult r = here.yoke(pipeline({"--schedule", "--svg", "step.svg"}));
  ASSERT_EQ(r.ending.exit_code, 0) << r.err;
  for (const char* part : {"backend    ptd 0.1.0, pp_degree 2",
                           "pp rank  blocks",
                           "temporary",
                           "\n0        0-",
                           "\n1        ",
                           "Traffic of a rank in a step",
                           "SendCarry",
                           "Ranks are idle for ",
                           "   0  F",
                           "wrote the drawing to step.svg"}) {
    EXPECT_THAT(r.out, HasSubstr(part));
  }
  EXPECT_THAT(r.out, Not(HasSubstr("The totals do not include")));
  EXPECT_THAT(read_file(here.folder() / "step.svg"), HasSubstr("</svg>"));
  EXPECT_FALSE(std::filesystem::exists(here.folder() / "runs")) << "nothing was started";
}

// Expects that the forecast of a step is what the run counts, on two axes.
void expect_counted(const std::vector<std::string>& more) {
  const Playground here;
  std::vector<std::string> args = pipeline({"dp_shards=2"});
  args.insert(args.end(), more.begin(), more.end());
  std::vector<std::string> plan = args, train = args;
  plan.push_back("--json");
  train[0] = "train";
  train.insert(train.end(), {"--virtual", "4"});
  const SubprocessResult planned = here.yoke(plan), r = here.yoke(train);
  ASSERT_EQ(planned.ending.exit_code, 0) << planned.err;
  ASSERT_EQ(r.ending.exit_code, 0) << r.err;
  const Json json = Json::parse(planned.out);
  EXPECT_EQ(json["plan"]["world_size"], 4);
  std::map<std::string, int64_t> forecast_bytes;  // bytes of each axis
  for (const Json& action : json["forecast"]["ranks"][0]["actions"]) {
    if (!action["axis"].is_null())
      forecast_bytes[action["axis"]] += action["payload_bytes"].get<int64_t>();
  }
  // Row of the last training step. The first one also exchanges what later steps need not.
  Json last;
  for (const Json& row : metrics_rows(here.folder() / "runs/r")) {
    if (row.contains("comm")) last = row;
  }
  EXPECT_EQ(forecast_bytes.size(), 2u);
  for (const auto& [axis, bytes] : forecast_bytes)
    EXPECT_EQ(last["comm"][axis]["bytes"], bytes) << axis;
}

TEST(Plan, AgreesWithTheRun) {
  expect_counted({});
  expect_counted({"train.optimizer=muon", "train.momentum=0.95"});
  for (const char* param : {"bf16", "fp64"}) {
    SCOPED_TRACE(param);
    expect_counted({"precision.product=fp8",
                    "ptd.fp8_gather=true",
                    std::string("precision.param=") + param,
                    "precision.fp8_skip=lm_head:layers.0"});
  }
}

TEST(Plan, ManyRanksNeedNoMachine) {
  const Playground here;
  const SubprocessResult r = here.yoke({"plan",
                                        "run.toml",
                                        "parallel_backend=ptd",
                                        "train.global_batch=64",
                                        "dp_shards=32",
                                        "--world",
                                        "64"});
  EXPECT_EQ(r.ending.exit_code, 2);
  EXPECT_THAT(r.err, HasSubstr("dp_shards"));
  const SubprocessResult fits = here.yoke(
      {"plan", "run.toml", "parallel_backend=ptd", "train.global_batch=64", "--world", "64"});
  EXPECT_EQ(fits.ending.exit_code, 0) << fits.err;
  EXPECT_THAT(fits.out, HasSubstr("dp_shards 64"));
  EXPECT_THAT(fits.out, Not(HasSubstr("idle")));  // no pipeline
}

// ptd chooses micro-batches for a pipeline, as large as possible with four for each rank.
TEST(Plan, TheChosenMicroBatchIsNotAboveItsLimit) {
  const Playground here;
  const auto chosen = [&](const std::string& limit) {
    const SubprocessResult r = here.yoke({"plan",
                                          "run.toml",
                                          "parallel_backend=ptd",
                                          "model.layers=2",
                                          "pp_degree=2",
                                          "train.global_batch=96",
                                          "train.max_micro_batch=" + limit,
                                          "--json"});
    EXPECT_EQ(r.ending.exit_code, 0) << r.err;
    return Json::parse(r.out)["plan"]["micro_batch"].get<int>();
  };
  EXPECT_EQ(chosen("64"), 12);
  EXPECT_EQ(chosen("12"), 12);
  EXPECT_EQ(chosen("5"), 4);
  EXPECT_EQ(chosen("1"), 1);
}

TEST(Plan, ABackendWithoutForecastsIsNamed) {
  const Playground here;
  const SubprocessResult r = here.yoke({"plan", "run.toml"});
  EXPECT_EQ(r.ending.exit_code, 0) << r.err;
  EXPECT_THAT(r.out, HasSubstr("Backend 'serial' reports no forecast"));
  const SubprocessResult drawing = here.yoke({"plan", "run.toml", "--svg", "a.svg"});
  EXPECT_EQ(drawing.ending.exit_code, 2);
  EXPECT_THAT(drawing.err, HasSubstr("nothing to draw"));
  EXPECT_EQ(drawing.out, "");
  const Json json = Json::parse(here.yoke({"plan", "run.toml", "--json"}).out);
  EXPECT_TRUE(json["forecast"].is_null());
}

TEST(Plan, ADrawingGoesToTheStandardOutputIfThatIsItsFile) {
  const Playground here;
  const SubprocessResult to_stdout = here.yoke(pipeline({"--svg", "/dev/stdout"}));
  EXPECT_EQ(to_stdout.ending.exit_code, 0) << to_stdout.err;
  EXPECT_THAT(to_stdout.out,
              AllOf(HasSubstr("</svg>"), HasSubstr("wrote the drawing to /dev/stdout")));
}

// The oracle plans each layout by itself.
TEST(Plan, ListsTheLayoutsThatItAccepts) {
  const Playground here;
  const std::vector<std::string> run{"plan",
                                     "run.toml",
                                     "parallel_backend=ptd",
                                     "train.global_batch=16",
                                     "--nproc",
                                     "4",
                                     "--json"};
  std::vector<std::string> all = run;
  all.push_back("--layouts");
  const SubprocessResult r = here.yoke(all);
  ASSERT_EQ(r.ending.exit_code, 0) << r.err;
  const Json listed = Json::parse(r.out);
  EXPECT_EQ(listed["possible"].size() + listed["refused"].size(), 15u) << "4 = 4 x 1 or 2 x 2";
  EXPECT_GT(listed["possible"].size(), 5u);
  EXPECT_GT(listed["refused"].size(), 0u);
  const auto alone = [&](const Json& layout) {
    std::vector<std::string> args = run;
    for (const auto& [key, degree] : layout["degrees"].items())
      args.push_back(key + "=" + degree.dump());
    return here.yoke(args);
  };
  for (const Json& layout : listed["possible"]) {
    SCOPED_TRACE(layout.dump());
    const SubprocessResult one = alone(layout);
    ASSERT_EQ(one.ending.exit_code, 0) << one.err;
    const Json json = Json::parse(one.out);
    EXPECT_EQ(json["plan"]["degrees"].size(), layout["degrees"].size());
    EXPECT_EQ(json["plan"]["micro_batch"], layout["micro_batch"]);
    int64_t memory = 0, traffic = 0;
    for (const Json& rank : json["forecast"]["ranks"]) {
      int64_t bytes = 0;
      for (const Json& a : rank["actions"])
        if (!a["axis"].is_null()) bytes += a["payload_bytes"].get<int64_t>();
      traffic = std::max(traffic, bytes);
      for (const Json& a : rank["actions"])
        memory = std::max(memory,
                          rank["param_bytes"].get<int64_t>() + rank["grad_bytes"].get<int64_t>() +
                              rank["optimizer_bytes"].get<int64_t>() +
                              a["unsharded_bytes"].get<int64_t>() +
                              a["activation_bytes"].get<int64_t>() +
                              std::max<int64_t>(a["temporary_bytes"].get<int64_t>(), 0));
    }
    EXPECT_EQ(layout["memory_bytes"], memory);
    EXPECT_EQ(layout["traffic_bytes"], traffic);
  }
  for (const Json& layout : listed["refused"]) {
    const SubprocessResult one = alone(layout);
    EXPECT_EQ(one.ending.exit_code, 2) << layout;
    EXPECT_THAT(one.err, HasSubstr(layout["reason"].get<std::string>()));
  }
}

TEST(Plan, ListsLayoutsAsATableWithTheGivenDegrees) {
  const Playground here;
  const SubprocessResult r = here.yoke(pipeline({"--layouts", "--nproc", "4", "model.kv_heads=1"}));
  ASSERT_EQ(r.ending.exit_code, 0) << r.err;
  EXPECT_THAT(r.out, HasSubstr("\npp_degree=2 dp_shards=2 "));
  EXPECT_THAT(r.out, HasSubstr("\npp_degree=2 tp_degree=2"));
  EXPECT_THAT(r.out, HasSubstr("Not possible: "));
  EXPECT_THAT(r.out, Not(HasSubstr("\ndp_shards=4")));
  EXPECT_THAT(r.out, HasSubstr(" at least ")) << "ptd does not forecast messages of tp";
  const SubprocessResult none =
      here.yoke({"plan", "run.toml", "parallel_backend=ptd", "--layouts", "--nproc", "7"});
  EXPECT_EQ(none.ending.exit_code, 2);
  EXPECT_THAT(none.out, HasSubstr("Not possible: 5 of 5 layouts\n"));
}

TEST(Plan, RefusesAsTrainDoes) {
  const Playground here;
  const auto expect_misuse = [&](const std::vector<std::string>& args, const char* part) {
    const SubprocessResult r = here.yoke(args);
    EXPECT_EQ(r.ending.exit_code, 2) << r.err;
    EXPECT_THAT(r.err, HasSubstr(part));
    EXPECT_EQ(r.out, "");
  };
  expect_misuse(pipeline({"pp_degree=9"}), "pp_degree");
  expect_misuse(pipeline({"ptd.pp_cut=3,9"}), "ptd.pp_cut");
  expect_misuse(pipeline({"--world", "none"}), "none: not a number of ranks");
  expect_misuse(pipeline({"--world", "3"}), "degrees whose product divides the 3 ranks");
  expect_misuse({"plan", "nowhere.toml"}, "nowhere.toml");
  expect_misuse({"plan"}, "CONFIG is required");
  expect_misuse(pipeline({"--json", "--schedule"}), "--json");
  expect_misuse(pipeline({"--json", "--svg", "a.svg"}), "--json");
  expect_misuse(pipeline({"--layouts"}), "--layouts needs the number of ranks; add --nproc N");
  expect_misuse(pipeline({"--layouts", "--nproc", "4", "--schedule"}), "--schedule");
  expect_misuse(pipeline({"--layouts", "--nproc", "0"}), "--nproc 0: not a number of ranks");
  expect_misuse(pipeline({"--layouts", "--nproc", "3"}),
                "no layout of so many ranks has the degrees that the run sets");
  expect_misuse(pipeline({"--layouts", "--nproc", "4", "model.preset=nix"}),
                "yoke: model.preset = \"nix\"; allowed: ");
  expect_misuse({"plan", "run.toml", "--layouts", "--nproc", "2", "dp_degree=1"},
                "no layout of so many ranks has the degrees");
  expect_misuse(pipeline({"--svg", "/nowhere/a.svg"}),
                "--svg /nowhere/a.svg cannot be written: No such file");
}

}  // namespace
}  // namespace yoke::testing
