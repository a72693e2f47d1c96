// Builds the example of a user's own model as a user would: outside the tree, against an
// installation. Every backend must train it to the same losses in every layout.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>

#include "core/base/subprocess.hpp"
#include "tests/cli/metrics_rows.hpp"
#include "tests/support/temp_folder.hpp"

namespace yoke::testing {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::Not;
using Words = std::vector<std::string>;

constexpr double kLossBound = 1e-12;  // relative, fp64: only the order of sums differs

class OwnModel : public ::testing::Test {
 protected:
  // Builds the worker once for all tests.
  static void SetUpTestSuite() {
    folder_ = new TempFolder;
    std::filesystem::copy(YOKE_PREFIX "/share/yoke/examples/own_model", *folder_ / "mine");
    must({"cmake",
          "-S",
          *folder_ / "mine",
          "-B",
          *folder_ / "mine/build",
          "-G",
          "Ninja",
          "-DCMAKE_BUILD_TYPE=Release",
          "-DCMAKE_PREFIX_PATH=" YOKE_PREFIX});
    must({"cmake", "--build", *folder_ / "mine/build"});
  }
  static void TearDownTestSuite() {
    delete folder_;
    folder_ = nullptr;
  }

  static void must(const Words& words) {
    Words argv{"/usr/bin/env"};
    argv.insert(argv.end(), words.begin(), words.end());
    const SubprocessResult r = run_subprocess(argv);
    ASSERT_TRUE(r.ending.ok()) << words[1] << "\n" << r.out << r.err;
  }
  static SubprocessResult yoke(const Words& words) {
    Words argv{
        "/usr/bin/env", "-C", *folder_ / "mine", "OMP_NUM_THREADS=1", YOKE_PREFIX "/bin/yoke"};
    argv.insert(argv.end(), words.begin(), words.end());
    return run_subprocess(argv);
  }
  static SubprocessResult train(const Words& more) {
    Words words{"train", "run.toml", "worker=" + (*folder_ / "mine/build/bars-worker")};
    words.insert(words.end(), more.begin(), more.end());
    return yoke(words);
  }
  static std::vector<double> losses(const Words& layout) {
    static int runs = 0;
    const std::string dir = "runs/parity" + std::to_string(runs++);
    Words words{"run.dir=" + dir,
                "precision.param=fp64",
                "precision.reduce=fp64",
                "train.steps=20",
                "metrics.every=1",
                "eval.every=0",
                "checkpoint.every=0"};
    words.insert(words.end(), layout.begin(), layout.end());
    const SubprocessResult r = train(words);
    EXPECT_EQ(r.ending.exit_code, 0) << r.err;
    return logged_losses(*folder_ / ("mine/" + dir));
  }

  static TempFolder* folder_;
};
TempFolder* OwnModel::folder_ = nullptr;

TEST_F(OwnModel, HasNoHalfBlocks) {
  const SubprocessResult r = train({"model.blocks=half"});
  EXPECT_EQ(r.ending.exit_code, 2);
  EXPECT_THAT(r.err, HasSubstr("model family 'bars' has no option 'blocks'"));
}

TEST_F(OwnModel, IsTrainedToTheSameNumbersByEveryBackendInEveryLayout) {
  const std::vector<double> expected = losses({});
  ASSERT_EQ(expected.size(), 20u);
  EXPECT_LT(expected.back(), 0.95 * expected.front()) << "nothing was learnt";
  std::vector<Words> layouts{{"--nproc", "2"}};
  const auto add = [&](const std::string& backend, std::vector<Words> its_layouts) {
    if (!std::filesystem::exists(YOKE_PREFIX "/lib/yoke/backends/" + backend + ".so")) return;
    for (Words& layout : its_layouts) {
      layout.push_back("parallel_backend=" + backend);
      layouts.push_back(layout);
    }
  };
  add("ptd",
      {{},
       {"--nproc", "2", "dp_degree=2"},
       {"--nproc", "2", "dp_shards=2", "train.micro_batch=8"},
       {"--nproc", "4", "dp_degree=2", "dp_shards=2"},
       {"--virtual", "4", "dp_shards=4"}});
  add("deepspeed_stub",
      {{"--nproc", "2", "deepspeed_stub.zero_stage=1"},
       {"--virtual", "2", "deepspeed_stub.zero_stage=3"}});
  for (const Words& layout : layouts) {
    const std::vector<double> got = losses(layout);
    ASSERT_EQ(got.size(), expected.size());
    for (size_t step = 0; step < got.size(); ++step) {
      EXPECT_LE(std::abs(got[step] - expected[step]), kLossBound * expected[step])
          << ::testing::PrintToString(layout) << ", step " << step + 1;
    }
  }
}

// The convolution at the input of the model and one in its middle need no gradients.
TEST_F(OwnModel, MayHaveFrozenParameters) {
  const std::vector<double> all = losses({});
  const std::string key = "model.freeze=[\"first\", \"second.bias\"]";
  const std::vector<double> expected = losses({key});
  ASSERT_EQ(expected.size(), all.size());
  EXPECT_EQ(expected.front(), all.front());
  EXPECT_NE(expected.back(), all.back());
  const std::vector<double> divided = losses({key, "--nproc", "2"});
  ASSERT_EQ(divided.size(), expected.size());
  for (size_t step = 0; step < expected.size(); ++step)
    EXPECT_LE(std::abs(divided[step] - expected[step]), kLossBound * expected[step]) << step;
  const SubprocessResult r = train({"model.freeze=[\"frist\"]"});
  EXPECT_EQ(r.ending.exit_code, 2);
  EXPECT_THAT(r.err, HasSubstr("\"frist\" names no parameter; did you mean 'first'?"));
}

// The report of a comparison has an estimate for the activations of every case.
TEST_F(OwnModel, IsCompared) {
  const SubprocessResult r = yoke({"compare",
                                   "run.toml",
                                   "worker=" + (*folder_ / "mine/build/bars-worker"),
                                   "train.steps=10",
                                   "--backends",
                                   "serial,replicas",
                                   "--nproc",
                                   "2",
                                   "--repeats",
                                   "1",
                                   "-o",
                                   "report.html"});
  EXPECT_EQ(r.ending.exit_code, 0) << r.out << r.err;
  EXPECT_THAT(r.out, AllOf(HasSubstr("L1"), Not(HasSubstr("unknown"))));
  EXPECT_THAT(read_file(*folder_ / "mine/report.html"),
              Not(HasSubstr("Activations are not declared")));
}

TEST_F(OwnModel, IsEvaluatedSavedAndResumedLikeAnyOther) {
  const SubprocessResult whole = train({"run.dir=runs/whole"});
  ASSERT_EQ(whole.ending.exit_code, 0) << whole.err;
  EXPECT_THAT(whole.out,
              AllOf(HasSubstr("own data of bars, 1,800 samples, 200 held out"),
                    HasSubstr("eval_loss:"),
                    Not(HasSubstr("bigram"))));
  const SubprocessResult rest = train({"run.dir=runs/rest",
                                       "checkpoint.resume=runs/whole/checkpoints/step-00000030",
                                       "--nproc",
                                       "2"});
  EXPECT_EQ(rest.ending.exit_code, 0) << rest.err;
  const SubprocessResult text = yoke({"generate", "runs/whole/checkpoints/step-00000060"});
  EXPECT_EQ(text.ending.exit_code, 2);
  EXPECT_THAT(text.err, HasSubstr("no built-in language model"));
}

TEST_F(OwnModel, HasKeysOfItsOwn) {
  EXPECT_EQ(train({"run.dir=runs/wide", "model.width=16", "train.steps=1"}).ending.exit_code, 0);
  EXPECT_THAT(read_file(*folder_ / "mine/runs/wide/config.resolved.toml"),
              HasSubstr("[model]\nfamily = \"bars\"\nfreeze = []\nwidth = 16\n"));
  const SubprocessResult unknown = train({"model.widht=3"});
  EXPECT_EQ(unknown.ending.exit_code, 2);
  EXPECT_THAT(unknown.err,
              AllOf(HasSubstr("model family 'bars' has no option 'widht'"),
                    HasSubstr("did you mean 'width'?")));
  const SubprocessResult range = train({"model.width=0"});
  EXPECT_EQ(range.ending.exit_code, 2);
  EXPECT_THAT(range.err, HasSubstr("model.width = 0"));
  const SubprocessResult batch = train({"train.global_batch=1900"});
  EXPECT_EQ(batch.ending.exit_code, 2);
  EXPECT_THAT(batch.err, HasSubstr("the model family has 1800 training samples"));
  const SubprocessResult other = train({"eval.path=text.txt", "data.holdout=0"});
  EXPECT_EQ(other.ending.exit_code, 2);
  EXPECT_THAT(other.err, HasSubstr("has samples of its own, so eval.path has no meaning for it"));
  const SubprocessResult padding = train({"data.pad_token=0"});
  EXPECT_EQ(padding.ending.exit_code, 2);
  EXPECT_THAT(padding.err, HasSubstr("so data.pad_token has no meaning for it"));
  const SubprocessResult house = yoke({"train", "run.toml"});
  EXPECT_EQ(house.ending.exit_code, 2);
  EXPECT_THAT(house.err, HasSubstr("model.family = \"bars\" is not known to this worker"));
}

}  // namespace
}  // namespace yoke::testing
