// Trains with configs of other programs that set what the run file leaves unset. The same run with
// these keys in the run file is the oracle.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>

#include "tests/cli/metrics_rows.hpp"
#include "tests/cli/playground.hpp"

namespace yoke::testing {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::Not;

class OtherConfig : public ::testing::Test {
 protected:
  OtherConfig() {
    here_.folder().write("ds.json", R"({
      "gradient_clipping": 0.25,
      "optimizer": {"type": "AdamW", "params": {"betas": [0.8, 0.9], "weight_decay": 0.02}},
      "scheduler": {"type": "WarmupLR", "params": {"warmup_max_lr": 0.002, "warmup_num_steps": 3}}
    })");
    here_.folder().write("acc.yaml", "distributed_type: MULTI_CPU\nmixed_precision: bf16\n");
  }
  SubprocessResult train(const std::string& run_dir, std::vector<std::string> more) const {
    more.insert(more.begin(), {"train", "run.toml", "run.dir=" + run_dir});
    return here_.yoke(more);
  }
  std::vector<double> losses(const std::string& run_dir) const {
    return logged_losses(here_.folder() / run_dir);
  }

  const std::vector<std::string> zero_{"parallel_backend=deepspeed_stub"};
  const std::vector<std::string> with_file_{"parallel_backend=deepspeed_stub",
                                            "deepspeed_stub.config_file=ds.json"};
  Playground here_;
};

std::vector<std::string> operator+(std::vector<std::string> a, const std::vector<std::string>& b) {
  a.insert(a.end(), b.begin(), b.end());
  return a;
}

TEST_F(OtherConfig, SetsWhatTheRunLeavesUnset) {
  const SubprocessResult filled = train("filled", with_file_);
  ASSERT_TRUE(filled.ending.ok()) << filled.err;
  EXPECT_THAT(filled.out + filled.err,
              AllOf(HasSubstr("keys that are unset here have values of another program's config: "
                              "train.clip = 0.25 (ds.json:2: gradient_clipping), "),
                    Not(HasSubstr("train.optimizer"))));
  const SubprocessResult written =
      train("written",
            zero_ + std::vector<std::string>{"train.clip=0.25",
                                             "train.betas=[0.8,0.9]",
                                             "train.weight_decay=0.02",
                                             "train.schedule=WarmupLR",
                                             "train.warmup=3",
                                             "lr_schedule.warmup_shape=log",
                                             "lr_schedule.start_factor=0",
                                             "train.lr=0.002"});
  ASSERT_TRUE(written.ending.ok()) << written.err;
  EXPECT_EQ(losses("filled"), losses("written"));
  ASSERT_TRUE(train("without", zero_).ending.ok());
  EXPECT_NE(losses("filled"), losses("without"));
  EXPECT_THAT(read_file(here_.folder() / "filled/config.resolved.toml"),
              AllOf(HasSubstr("clip = 0.25\n"), HasSubstr("schedule = \"WarmupLR\"\n")));
}

// What a run would have is what the run then has, except for what the backend chooses.
TEST_F(OtherConfig, IsShownWithoutARun) {
  const std::vector<std::string> run = std::vector<std::string>{"run.toml"} + with_file_ +
                                       std::vector<std::string>{"run.dir=r", "--nproc", "2"};
  const SubprocessResult shown = here_.yoke(std::vector<std::string>{"config", "show"} + run);
  ASSERT_TRUE(shown.ending.ok()) << shown.err;
  EXPECT_FALSE(std::filesystem::exists(here_.folder() / "r")) << "nothing was started";
  ASSERT_TRUE(here_.yoke(std::vector<std::string>{"train"} + run).ending.ok());
  std::string resolved = read_file(here_.folder() / "r/config.resolved.toml");
  std::string expected = shown.out;
  for (const char* chosen : {"dp_degree = 2\n",
                             "dp_shards = 1\n",
                             "cp_degree = 1\n",
                             "tp_degree = 1\n",
                             "pp_degree = 1\n",
                             "micro_batch = 2\n",
                             "reduce = \"fp32\"\n"}) {
    const size_t at = expected.find(std::string("\n") + chosen);
    ASSERT_NE(at, std::string::npos) << chosen << expected;
    expected.erase(at + 1, std::string(chosen).size());
  }
  EXPECT_EQ(expected, resolved);
  const SubprocessResult origins =
      here_.yoke(std::vector<std::string>{"config", "show", "--origin"} + run);
  EXPECT_THAT(origins.out,
              AllOf(HasSubstr("clip = 0.25  # ds.json:2: gradient_clipping\n"),
                    HasSubstr("dp_degree = 2  # chosen by deepspeed_stub\n"),
                    HasSubstr("steps = 4  # run.toml:")));
  const SubprocessResult refused = here_.yoke(std::vector<std::string>{"config", "show"} + run +
                                              std::vector<std::string>{"train.clip=1.0"});
  EXPECT_EQ(refused.ending.exit_code, 2);
  EXPECT_THAT(refused.err, HasSubstr("gradient_clipping = 0.25; allowed: 1.0"));
  EXPECT_EQ(here_.yoke({"config", "show", "run.toml", "--nproc", "no"}).ending.exit_code, 2);
}

TEST_F(OtherConfig, IsKeptInTheRunFolder) {
  const std::string original = read_file(here_.folder() / "ds.json");
  ASSERT_TRUE(train("with", with_file_).ending.ok());
  here_.folder().write("ds.json", "{}");
  EXPECT_EQ(read_file(here_.folder() / "with/options/deepspeed_stub.config_file.json"), original);
  ASSERT_TRUE(train("without", zero_).ending.ok());
  EXPECT_FALSE(std::filesystem::exists(here_.folder() / "without/options"));
}

// A finished run continues with the same file, whose values are part of the run.
TEST_F(OtherConfig, IsPartOfTheRunThatIsResumed) {
  ASSERT_TRUE(train("r", with_file_).ending.ok());
  const SubprocessResult more =
      train("r", with_file_ + std::vector<std::string>{"train.steps=6", "checkpoint.resume=auto"});
  EXPECT_TRUE(more.ending.ok()) << more.err;
  EXPECT_EQ(losses("r").size(), 6u);
  here_.folder().write("ds.json", R"({"gradient_clipping": 0.5})");
  const SubprocessResult other =
      train("r", with_file_ + std::vector<std::string>{"train.steps=8", "checkpoint.resume=auto"});
  EXPECT_EQ(other.ending.exit_code, 2);
  EXPECT_THAT(other.err, HasSubstr("train.clip = 0.5 (0.25 before)"));
}

TEST_F(OtherConfig, DoesNotOverruleTheRun) {
  const SubprocessResult conflict =
      train("r", with_file_ + std::vector<std::string>{"train.clip=1.0", "train.warmup=2"});
  EXPECT_EQ(conflict.ending.exit_code, 2);
  EXPECT_THAT(conflict.err,
              AllOf(HasSubstr("this run: 2 errors"),
                    HasSubstr("ds.json:2: gradient_clipping = 0.25; allowed: 1.0"),
                    HasSubstr("but the run has train.warmup = 2; give it in one of them only")));
}

TEST_F(OtherConfig, IsOnlyComparedIfTheRunAsksForIt) {
  const SubprocessResult checked =
      train("r", with_file_ + std::vector<std::string>{"other_config=check"});
  EXPECT_EQ(checked.ending.exit_code, 2);
  EXPECT_THAT(checked.err,
              AllOf(HasSubstr("ds.json:2: gradient_clipping = 0.25; allowed: 1.0"),
                    HasSubstr("but the run has train.warmup = 0")));
}

TEST_F(OtherConfig, MayBeThatOfAccelerateOrItsVariables) {
  const std::vector<std::string> accelerate{"parallel_backend=accelerate_compat"};
  for (const auto& [words, variables] :
       {std::pair{accelerate + std::vector<std::string>{"accelerate_compat.config_file=acc.yaml"},
                  std::vector<std::string>{}},
        std::pair{accelerate, std::vector<std::string>{"ACCELERATE_MIXED_PRECISION=bf16"}}}) {
    const SubprocessResult r =
        here_.yoke(std::vector<std::string>{"train", "run.toml"} + words, variables);
    EXPECT_TRUE(r.ending.ok()) << r.err;
    EXPECT_THAT(r.out + r.err, HasSubstr("precision.param = \"bf16\" ("));
    EXPECT_THAT(r.out, HasSubstr("precision  bf16"));
  }
}

TEST_F(OtherConfig, WithoutClippingDoesNotClip) {
  here_.folder().write("ds.json", R"({"train_batch_size": 4})");
  const SubprocessResult r = train("r", with_file_);
  ASSERT_TRUE(r.ending.ok()) << r.err;
  EXPECT_THAT(read_file(here_.folder() / "r/config.resolved.toml"), HasSubstr("clip = 0.0\n"));
}

// The rates of the scheduler are fractions of the rate of the optimizer, which the run takes over.
TEST_F(OtherConfig, MayGiveThePeakRateToTheOptimizerOnly) {
  here_.folder().write("ds.json", R"({
      "optimizer": {"type": "AdamW", "params": {"lr": 0.01}},
      "scheduler": {"type": "WarmupLR", "params": {"warmup_min_lr": 0.001, "warmup_max_lr": "auto",
                                                   "warmup_num_steps": 3}}})");
  const SubprocessResult r = train("r", with_file_);
  ASSERT_TRUE(r.ending.ok()) << r.err;
  const std::vector<nlohmann::json> rows = metrics_rows(here_.folder() / "r");
  EXPECT_DOUBLE_EQ(rows.front().at("lr"), 0.001);
  EXPECT_DOUBLE_EQ(rows.back().at("lr"), 0.01);
}

// An option on the command line that this run cannot use would be lost silently.
TEST_F(OtherConfig, OfAnotherBackendIsReported) {
  const SubprocessResult r = train("r", {"deepspeed_stub.config_file=ds.json"});
  ASSERT_TRUE(r.ending.ok()) << r.err;
  EXPECT_THAT(r.out + r.err,
              HasSubstr("deepspeed_stub.config_file has no effect: the backend is serial; to use "
                        "the other one, add parallel_backend=deepspeed_stub"));
}

// A text of the file must not become a line of the run file.
TEST_F(OtherConfig, CannotAddLinesToAnImport) {
  here_.folder().write(
      "acc.yaml", "distributed_type: MULTI_CPU\nmain_training_function: \"x\\ntrain.lr = 9 #\"\n");
  const SubprocessResult r = here_.yoke({"config", "import", "acc.yaml"});
  EXPECT_TRUE(r.ending.ok()) << r.err;
  EXPECT_THAT(r.out, AllOf(HasSubstr("= x\\ntrain.lr = 9 #"), Not(HasSubstr("\ntrain.lr"))));
}

TEST_F(OtherConfig, MayHaveAnyNameIfTheBackendIsGiven) {
  here_.folder().write("zero.conf", R"({"train_batch_size": 4})");
  const SubprocessResult r =
      here_.yoke({"config", "import", "zero.conf", "parallel_backend=deepspeed_stub"});
  EXPECT_TRUE(r.ending.ok()) << r.err;
  EXPECT_THAT(r.out, HasSubstr("\ntrain.global_batch = 4 "));
}

TEST_F(OtherConfig, IsNamedInFaultsOfAnImport) {
  here_.folder().write("ds.json", R"({"train_batch_size": -4})");
  const SubprocessResult r = here_.yoke({"config", "import", "ds.json"});
  EXPECT_EQ(r.ending.exit_code, 2);
  EXPECT_THAT(r.err,
              AllOf(HasSubstr("ds.json:1: train_batch_size"), Not(HasSubstr("command line"))));
}

// The command line overrides the file that names the other one, and no line is printed twice.
TEST_F(OtherConfig, MayNameAnotherFile) {
  here_.folder().write("acc.yaml",
                       "distributed_type: DEEPSPEED\nnum_processes: 2\n"
                       "deepspeed_config: {deepspeed_config_file: ds.json}\n");
  here_.folder().write("ds.json", R"({"train_batch_size": 8, "zero_optimization": {"stage": 2}})");
  const SubprocessResult r = here_.yoke({"config", "import", "acc.yaml", "dp_shards=4"});
  ASSERT_TRUE(r.ending.ok()) << r.err;
  EXPECT_THAT(r.out,
              AllOf(HasSubstr("\ndp_shards = 4 "),
                    HasSubstr("\n# acc.yaml:2: num_processes = 2 means dp_shards = 2; the command "
                              "line decides\n")));
  EXPECT_EQ(r.out.find("\nparallel_backend = "), r.out.rfind("\nparallel_backend = ")) << r.out;
}

// A variable of the shell is not part of the file.
TEST_F(OtherConfig, IsImportedWithoutVariables) {
  const SubprocessResult r =
      here_.yoke({"config", "import", "ds.json"}, {"YOKE_TRAIN_CLIP=3", "YOKE_TRAIN_STEPS=x"});
  EXPECT_TRUE(r.ending.ok()) << r.err;
  EXPECT_THAT(r.out, HasSubstr("\ntrain.clip = 0.25 "));
}

// The cases of a comparison train with the same values, so a file cannot change those of one case.
TEST_F(OtherConfig, MustAgreeWithTheRunInAComparison) {
  const SubprocessResult r =
      here_.yoke({"compare",
                  "run.toml",
                  "--steps",
                  "2",
                  "--case",
                  "plain:parallel_backend=serial",
                  "--case",
                  "zero:parallel_backend=deepspeed_stub,deepspeed_stub.config_file=ds.json"});
  EXPECT_NE(r.ending.exit_code, 0);
  EXPECT_THAT(r.out + r.err, HasSubstr("train.warmup = 0; write that line into the run file"));
}

}  // namespace
}  // namespace yoke::testing
