#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstdlib>
#include <fstream>
#include <iterator>
#include <nlohmann/json.hpp>

#include "tests/cli/yoke_install.hpp"

namespace yoke {
namespace {

using ::testing::HasSubstr;
using ::testing::StartsWith;
using Json = nlohmann::json;
using testing::YokeInstall;

constexpr const char* kRun =
    "parallel_backend = \"toy\"\ndata.path = \"text\"\n[train]\nlr = 3e-4\n[toy]\nsize = 3\n";

struct Prepared {
  YokeInstall install;
  Prepared() {
    install.add_toy("toy");
    install.folder().write("run.toml", kRun);
  }
};

TEST(ConfigShow, PrintsARunFileThatSaysTheSame) {
  const Prepared s;
  const SubprocessResult first =
      s.install.run({"config", "show", "run.toml", "train.steps=7", "toy.size=4"});
  EXPECT_EQ(first.ending.exit_code, 0);
  EXPECT_EQ(first.err, "");
  EXPECT_THAT(first.out, HasSubstr("\nsteps = 7\n"));
  EXPECT_THAT(first.out, HasSubstr("\nlr = 3e-4\n"));
  EXPECT_THAT(first.out, HasSubstr("\n[toy]\nsize = 4\n"));
  s.install.folder().write("again.toml", first.out);
  EXPECT_EQ(s.install.run({"config", "show", "again.toml"}).out, first.out);
}

TEST(ConfigShow, SaysWhoSetEachValue) {
  const Prepared s;
  const SubprocessResult r =
      s.install.run({"config", "show", "--origin", "run.toml", "train.steps=7"},
                    {"YOKE_SEED=5", "YOKE_TOY_NAME=x"});
  EXPECT_EQ(r.ending.exit_code, 0);
  for (const char* line : {"parallel_backend = \"toy\"  # run.toml:1\n",
                           "lr = 3e-4  # run.toml:4\n",
                           "steps = 7  # command line\n",
                           "seed = 5  # YOKE_SEED\n",
                           "warmup = 0  # default\n",
                           "name = \"x\"  # YOKE_TOY_NAME\n"}) {
    EXPECT_THAT(r.out, HasSubstr(line));
  }
}

TEST(ConfigShow, PrintsJson) {
  const Prepared s;
  const Json json = Json::parse(s.install.run({"config", "show", "run.toml", "--json"}).out);
  EXPECT_EQ(json["train.lr"]["value"], 3e-4);
  EXPECT_EQ(json["train.lr"]["origin"], "run.toml:4");
  EXPECT_TRUE(json["dp_shards"]["value"].is_null());
}

TEST(ConfigShow, ReportsAllFaultsAndEndsWith2) {
  const Prepared s;
  const SubprocessResult r =
      s.install.run({"config", "show", "run.toml", "train.step=1", "pp_degree=0", "ass.size=1"});
  EXPECT_EQ(r.ending.exit_code, 2);
  EXPECT_EQ(r.out, "");
  EXPECT_EQ(r.err,
            "yoke: run.toml: 3 errors\n"
            "  command line: unknown key 'train.step'; did you mean 'train.steps'?\n"
            "  command line: pp_degree = 0: out of range; allowed: 1 or more\n"
            "  command line: unknown table 'ass'; it is neither a table of the run file nor a "
            "backend (found: toy)\n");
}

TEST(ConfigShow, SaysThatThereIsNoSuchFile) {
  const SubprocessResult r = YokeInstall().run({"config", "show", "missing.toml"});
  EXPECT_EQ(r.ending.exit_code, 2);
  EXPECT_EQ(r.err, "yoke: missing.toml: there is no such file\n");
}

TEST(ConfigShow, FindsBackendsInTheFoldersOfTheRunFile) {
  const Prepared s;
  s.install.add_toy("toy_later", "mine");
  const std::string path = "backend_path=" + (s.install.folder() / "mine");
  EXPECT_EQ(s.install.run({"config", "show", "run.toml", "toy_later.size=1"}).ending.exit_code, 2);
  EXPECT_EQ(
      s.install.run({"config", "show", "run.toml", "toy_later.size=1", path}).ending.exit_code, 0);
}

TEST(ConfigSchema, ListsEveryKeyAsTextAndAsJson) {
  const YokeInstall install;
  const SubprocessResult text = install.run({"config", "schema"});
  EXPECT_EQ(text.ending.exit_code, 0);
  EXPECT_THAT(text.out, StartsWith("key "));
  const Json rows = Json::parse(install.run({"config", "schema", "--json"}).out);
  EXPECT_GT(rows.size(), 40u);
  for (const Json& row : rows) {
    const std::string key = row["key"];
    EXPECT_THAT(text.out, HasSubstr('\n' + key + ' '));
  }
}

TEST(RunFiles, OfTheRepositoryAreSound) {
  const YokeInstall install;
  for (const char* name : {"novels", "parity", "llama3_8b_fp8"}) {
    const std::string file = std::string(std::getenv("YOKE_SOURCE")) + "/configs/" + name + ".toml";
    const SubprocessResult r = install.run({"config", "show", file, "--json"});
    EXPECT_EQ(r.err, "");
    ASSERT_EQ(r.ending.exit_code, 0);
    // These run files do not set any degree.
    const Json json = Json::parse(r.out);
    for (const char* degree : {"pp_degree", "dp_degree", "dp_shards", "cp_degree", "tp_degree"}) {
      EXPECT_TRUE(json[degree]["value"].is_null()) << name << " " << degree;
    }
  }
}

// The command at the top of each file names the number of ranks that its degrees need.
TEST(RunFiles, WithDegreesSayHowManyRanksTheyNeed) {
  const YokeInstall install;
  for (const char* name : {"tp_hsdp", "tp_hsdp_small", "cp_128k", "cp_small"}) {
    SCOPED_TRACE(name);
    const std::string file = std::string(std::getenv("YOKE_SOURCE")) + "/configs/" + name + ".toml";
    const SubprocessResult r = install.run({"config", "show", file, "--json"});
    ASSERT_EQ(r.ending.exit_code, 0) << r.err;
    const Json json = Json::parse(r.out);
    int64_t ranks = 1;
    for (const char* degree : {"pp_degree", "dp_degree", "dp_shards", "cp_degree", "tp_degree"}) {
      if (!json[degree]["value"].is_null()) ranks *= json[degree]["value"].get<int64_t>();
    }
    std::ifstream text(file);
    EXPECT_THAT(std::string(std::istreambuf_iterator<char>(text), {}),
                HasSubstr("configs/" + std::string(name) + ".toml --nproc " +
                          std::to_string(ranks) + "\n"));
  }
}

TEST(RunFiles, ParityIsDeterministicTinyAndFitsEveryLayout) {
  const std::string file = std::string(std::getenv("YOKE_SOURCE")) + "/configs/parity.toml";
  const Json json = Json::parse(YokeInstall().run({"config", "show", file, "--json"}).out);
  EXPECT_EQ(json["train.global_batch"]["value"], 8);
  EXPECT_EQ(json["checkpoint.every"]["value"], 0);
  EXPECT_EQ(json["metrics.every"]["value"], 1);
  EXPECT_EQ(json["data.order"]["value"], "sequential");
  EXPECT_EQ(json["data.seq_len"]["value"], 64);
  EXPECT_EQ(json["model.preset"]["value"], "tiny");
  EXPECT_EQ(json["precision.param"]["value"], "fp32");
  EXPECT_EQ(json["train.steps"]["value"], 20);
}

}  // namespace
}  // namespace yoke
