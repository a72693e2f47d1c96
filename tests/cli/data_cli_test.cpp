// Trains on data of several files with the real program: streams, mixtures, evaluation files, and
// what is refused.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/cli/metrics_rows.hpp"
#include "tests/cli/playground.hpp"

namespace yoke::testing {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::Not;
using ::testing::Pointwise;

constexpr char kMixture[] = "data.path=[\"a.txt\", \"b/*.txt\"]";

class Data : public ::testing::Test {
 protected:
  Data() {
    const std::string text = read_file(here_.folder() / "text.txt");
    here_.folder().write("a.txt", text.substr(0, 7001));
    here_.folder().write("b/1.txt", text.substr(7001, 5000));
    here_.folder().write("b/2.txt", text.substr(12001));
  }
  SubprocessResult train(std::vector<std::string> args) const {
    args.insert(args.begin(), {"train", "run.toml"});
    return here_.yoke(args);
  }
  // Trains in the folder runs/<name> and returns the losses.
  std::vector<double> losses(const std::string& name, std::vector<std::string> args) const {
    args.push_back("run.dir=runs/" + name);
    const SubprocessResult result = train(args);
    EXPECT_TRUE(result.ending.ok()) << result.err;
    return logged_losses(here_.folder() / ("runs/" + name));
  }
  void expect_refused(const std::vector<std::string>& args,
                      const std::vector<std::string>& fragments) const {
    const SubprocessResult result = train(args);
    EXPECT_EQ(result.ending.exit_code, 2) << result.err;
    for (const std::string& fragment : fragments) EXPECT_THAT(result.err, HasSubstr(fragment));
    EXPECT_FALSE(std::filesystem::exists(here_.folder() / "runs")) << "nothing may be started";
  }
  Playground here_;
};

TEST_F(Data, OfSeveralFilesTrainsLikeOneFile) {
  const std::vector<double> one = losses("one", {});
  ASSERT_EQ(one.size(), 4u);
  EXPECT_EQ(losses("two", {"data.path=[\"a.txt\", \"b\"]"}), one);
  EXPECT_EQ(losses("three", {"data.path=[\"a.txt\", \"b/?.txt\"]"}), one);
}

TEST_F(Data, OfAMixtureIsTheSameOnEveryNumberOfRanksAndAfterAResume) {
  const std::vector<std::string> mixture{kMixture, "data.weights=0.7,0.3", "precision.param=fp64"};
  const auto with = [&](std::vector<std::string> more) {
    more.insert(more.begin(), mixture.begin(), mixture.end());
    return more;
  };
  const std::vector<double> one = losses("one", with({}));
  ASSERT_EQ(one.size(), 4u);
  // The ranks add the same numbers in another order.
  EXPECT_THAT(losses("two", with({"--nproc", "2"})), Pointwise(::testing::DoubleNear(1e-12), one));
  const std::string middle = "checkpoint.resume=runs/one/checkpoints/step-00000002";
  EXPECT_EQ(losses("rest", with({middle})), std::vector<double>(one.begin() + 2, one.end()));
  EXPECT_NE(losses("even", {kMixture, "data.weights=1,1", "precision.param=fp64"}), one);
}

TEST_F(Data, IsDescribedByItsTokensAndEpochs) {
  SubprocessResult result = train({"train.steps=300", "checkpoint.every=0", "metrics.every=150"});
  ASSERT_TRUE(result.ending.ok()) << result.err;
  // 20,000 bytes make 625 windows of 32, of which 31 are held out.
  EXPECT_THAT(result.out,
              AllOf(HasSubstr("data       text.txt, 594 windows, 31 held out\n"),
                    HasSubstr("epochs     2.02, each of 594 windows of 32 tokens (19,008)\n"),
                    HasSubstr("only the first 256 occur\n"),
                    HasSubstr("trained on 1,200 sequences (38,400 tokens): 2.02 epochs of "
                              "text.txt\n")));
  const auto rows = metrics_rows(here_.folder() / "runs/r");
  EXPECT_DOUBLE_EQ(rows.at(0).at("epoch"), 600.0 / 594);
  EXPECT_DOUBLE_EQ(rows.at(1).at("epoch"), 1200.0 / 594);

  result = train({kMixture, "data.weights=3,1", "data.holdout=0", "run.dir=runs/m"});
  ASSERT_TRUE(result.ending.ok()) << result.err;
  EXPECT_THAT(
      result.out,
      AllOf(HasSubstr("data       mixture of 2 sources, 624 windows, 0 held out\n"),
            HasSubstr("source 0   75% from a.txt: 0.055 epochs, each of 218 windows of 32 tokens "
                      "(6,976)\n"),
            HasSubstr("source 1   25% from b/*.txt (2 files): 0.00985 epochs, each of 406"),
            HasSubstr("0.055 epochs of a.txt, 0.00985 epochs of b/*.txt (2 files)\n")));
}

TEST_F(Data, IsEvaluatedOnFilesOfItsOwn) {
  const SubprocessResult result =
      train({"data.path=a.txt", "eval.path=b", "eval.every=4", "eval.batches=2"});
  ASSERT_TRUE(result.ending.ok()) << result.err;
  EXPECT_THAT(result.out,
              AllOf(HasSubstr("data       a.txt, 218 windows, 406 for evaluation in b (2 files)\n"),
                    HasSubstr("eval_loss:"),
                    HasSubstr("tokens: 256  "),
                    Not(HasSubstr("trains on, too"))));
  const SubprocessResult same =
      train({"data.path=a.txt", "eval.path=a.txt", "eval.every=4", "run.dir=runs/s"});
  EXPECT_THAT(same.out, HasSubstr("eval.path names the file \"a.txt\", which data.path trains on"));
}

TEST_F(Data, ThatDoesNotFitIsRefused) {
  here_.folder().write("ids.npy", "\x93NUMPY damaged");
  expect_refused({"data.path=c/*.txt"},
                 {"data.path = \"c/*.txt\" matches no file", "nearest", "a.txt"});
  expect_refused({"data.path=[\"a.txt\", \"ids.npy\"]"}, {"ids.npy"});
  expect_refused({"data.path=[\"a.txt\", \"*.txt\"]"}, {"a.txt\" twice"});
  expect_refused({kMixture, "data.weights=1"}, {"a weight for 1 entry", "2; give one weight"});
  expect_refused({kMixture, "data.weights=1,0.33333333"}, {"0.33333333 cannot be used"});
  expect_refused({"eval.path=a.txt", "eval.every=1", "data.holdout=0.05"}, {"remove one of them"});
  expect_refused({"eval.path=gone.txt", "eval.every=1"},
                 {"eval.path = \"gone.txt\" does not exist"});
}

TEST_F(Data, CanBeInspectedAsOneStream) {
  const SubprocessResult result = here_.yoke({"data", "inspect", "a.txt", "b/*.txt", "--json"});
  ASSERT_TRUE(result.ending.ok()) << result.err;
  const auto json = nlohmann::json::parse(result.out);
  EXPECT_EQ(json["files"], 3);
  EXPECT_EQ(json["tokens"], std::filesystem::file_size(here_.folder() / "text.txt"));
  EXPECT_EQ(json["bytes"], json["tokens"]);
}

}  // namespace
}  // namespace yoke::testing
