// Trains on data of several files with the real program: streams, mixtures, evaluation files, and
// what is refused.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/cli/metrics_rows.hpp"
#include "tests/cli/playground.hpp"
#include "tests/unit/data/token_files.hpp"

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
  // Expects that a run with a run folder of its own fails with this exit code and message.
  void expect_refused_in(const std::string& run_dir,
                         std::vector<std::string> args,
                         const std::string& fragment,
                         int exit_code) const {
    args.push_back("run.dir=" + run_dir);
    const SubprocessResult result = train(args);
    EXPECT_EQ(result.ending.exit_code, exit_code) << result.err;
    EXPECT_THAT(result.err, HasSubstr(fragment));
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
                    HasSubstr("bigram baseline:"),
                    HasSubstr("tokens: 256  "),
                    Not(HasSubstr("trains on, too"))));
  const SubprocessResult same =
      train({"data.path=a.txt", "eval.path=a.txt", "eval.every=4", "run.dir=runs/s"});
  EXPECT_THAT(same.out, HasSubstr("eval.path names the file \"a.txt\", which data.path trains on"));
}

TEST_F(Data, IsEvaluatedAfterTheLastStepToo) {
  const auto evaluated = [&](const std::string& name, const std::vector<std::string>& more) {
    std::vector<std::string> args{"data.path=a.txt", "run.dir=runs/" + name};
    args.insert(args.end(), more.begin(), more.end());
    const SubprocessResult result = train(args);
    EXPECT_TRUE(result.ending.ok()) << result.err;
    std::vector<int64_t> steps;
    for (const nlohmann::json& row : metrics_rows(here_.folder() / ("runs/" + name)))
      if (row.contains("eval_loss")) steps.push_back(row.at("step"));
    return steps;
  };
  EXPECT_EQ(evaluated("three", {"eval.every=3"}), (std::vector<int64_t>{3, 4}));
  EXPECT_EQ(evaluated("four", {"eval.every=4"}), (std::vector<int64_t>{4}));
  EXPECT_EQ(evaluated("nine", {"eval.every=9"}), (std::vector<int64_t>{4}));
  EXPECT_EQ(evaluated("never", {"eval.every=0"}), (std::vector<int64_t>{}));
  const std::string resume = "checkpoint.resume=runs/three/checkpoints/step-00000002";
  EXPECT_EQ(evaluated("rest", {"eval.every=9", resume}), (std::vector<int64_t>{4}));
}

// Two batches of 4 sequences of 32 tokens are 256 bytes and one more target.
TEST_F(Data, HasABaselineForTheBytesThatAreEvaluated) {
  const auto last_line = [&](const std::string& name, const std::vector<std::string>& more) {
    std::vector<std::string> args{"data.path=a.txt", "eval.every=4", "run.dir=runs/" + name};
    args.insert(args.end(), more.begin(), more.end());
    const std::string out = train(args).out;
    return out.substr(std::min(out.size(), out.find("held-out loss: ")));
  };
  here_.folder().write("head.txt", read_file(here_.folder() / "b/1.txt").substr(0, 257));
  const std::string part = last_line("part", {"eval.path=b/1.txt", "eval.batches=2"});
  EXPECT_THAT(part, HasSubstr(", both over 256 bytes\n"));
  EXPECT_EQ(part, last_line("head", {"eval.path=head.txt"}));
  EXPECT_THAT(last_line("all", {"eval.path=b/1.txt"}), Not(HasSubstr("over 256 bytes")));
}

// Documents end with ";". The masks hide about a third of the bytes, and the first 200 of b/1.txt,
// so that the first of the evaluated batches has no target that counts.
TEST_F(Data, WithMasksAndDocumentsIsTheSameAfterAResume) {
  const auto write_mask = [&](const std::string& file, size_t hidden) {
    const size_t size = std::filesystem::file_size(here_.folder() / (file + ".txt"));
    std::string mask(size, '\1');
    for (size_t i = 0; i < size; ++i) {
      if (i * i % 7 < 2 || i < hidden) mask[i] = '\0';
    }
    here_.folder().write(file + ".mask", mask);
  };
  write_mask("a", 0), write_mask("b/1", 200), write_mask("b/2", 0);
  const auto rows = [&](const std::string& name, const std::vector<std::string>& more) {
    std::vector<std::string> args{"data.path=a.txt",
                                  "data.mask=required",
                                  "data.documents=separate",
                                  "data.document_end=59",
                                  "precision.param=fp64",
                                  "eval.path=b",
                                  "eval.every=2",
                                  "eval.batches=3",
                                  "run.dir=runs/" + name};
    args.insert(args.end(), more.begin(), more.end());
    const SubprocessResult result = train(args);
    EXPECT_TRUE(result.ending.ok()) << result.err;
    EXPECT_THAT(result.out,
                AllOf(HasSubstr("3 of 3 files of tokens have a label mask"),
                      Not(HasSubstr("bigram baseline"))));
    std::vector<double> losses;
    for (const nlohmann::json& row : metrics_rows(here_.folder() / ("runs/" + name)))
      losses.push_back(row.contains("loss") ? row["loss"] : row.at("eval_loss"));
    return losses;
  };
  const std::vector<double> one = rows("one", {});
  ASSERT_EQ(one.size(), 6u) << "four steps and two evaluations";
  EXPECT_THAT(rows("two", {"--nproc", "2", "train.micro_batch=1"}),
              Pointwise(::testing::DoubleNear(1e-12), one));
  EXPECT_EQ(rows("rest", {"checkpoint.resume=runs/one/checkpoints/step-00000002"}),
            std::vector<double>(one.begin() + 3, one.end()));
  const std::string a = here_.folder() / "a.mask", text = read_file(a);
  here_.folder().write("a.mask", text + '\1');
  expect_refused_in("runs/long",
                    {"data.path=a.txt", "data.mask=required"},
                    "\"a.mask\" has 7002 bytes, but \"a.txt\" has 7001 tokens",
                    2);
  here_.folder().write("a.mask", std::string(text.size(), '\0'));
  expect_refused_in("runs/none",
                    {"data.path=a.txt", "data.mask=required"},
                    "no target of the global batch at sample 0 counts",
                    1);
}

TEST_F(Data, ThatDoesNotFitIsRefused) {
  here_.folder().write("ids.npy", "\x93NUMPY damaged");
  expect_refused({"data.path=c/*.txt"},
                 {"data.path = \"c/*.txt\" matches no file", "no name in . is similar"});
  expect_refused({"data.path=a.txt/*.txt"},
                 {"data.path = \"a.txt/*.txt\" matches no file", "nearest", "a.txt"});
  expect_refused({"data.path=[\"a.txt\", \"ids.npy\"]"}, {"ids.npy"});
  expect_refused({"data.path=[\"a.txt\", \"*.txt\"]"}, {"a.txt\" twice"});
  expect_refused({kMixture, "data.weights=1"}, {"a weight for 1 entry", "2; give one weight"});
  expect_refused({kMixture, "data.weights=1,0.33333333"}, {"0.33333333 cannot be used"});
  expect_refused({"eval.path=a.txt", "eval.every=1", "data.holdout=0.05"}, {"remove one of them"});
  expect_refused({"eval.path=gone.txt", "eval.every=1"},
                 {"eval.path = \"gone.txt\" does not exist"});
  expect_refused({"data.documents=separate"}, {"has no description", "set data.document_end"});
  expect_refused({"data.documents=separate", "data.document_end=99999"},
                 {"data.document_end = 99999, but model.vocab"});
  expect_refused({"data.mask=required"}, {"lacks its label mask text.mask"});
}

TEST_F(Data, CanBeInspectedAsOneStream) {
  const SubprocessResult result = here_.yoke({"data", "inspect", "a.txt", "b/*.txt", "--json"});
  ASSERT_TRUE(result.ending.ok()) << result.err;
  const auto json = nlohmann::json::parse(result.out);
  EXPECT_EQ(json["files"], 3);
  EXPECT_EQ(json["tokens"], std::filesystem::file_size(here_.folder() / "text.txt"));
  EXPECT_EQ(json["bytes"], json["tokens"]);
  EXPECT_EQ(json["label_masks"], 0);
  EXPECT_EQ(json["counted_targets"], 1);
}

TEST_F(Data, HasNoWindowsIfItIsEmpty) {
  here_.folder().write("none.txt", "");
  const SubprocessResult result = here_.yoke({"data", "inspect", "none.txt", "--json"});
  const auto json = nlohmann::json::parse(result.out);
  EXPECT_EQ(json["training_windows"], 0);
  EXPECT_EQ(json["held_out_windows"], 0);
}

TEST_F(Data, IsInspectedWithItsMask) {
  here_.folder().write("x.npy", npy_file(npy_literal("<u2", 4), std::string(8, '\1')));
  here_.folder().write("x.mask", std::string("\1\0\0\1", 4));
  const SubprocessResult result = here_.yoke({"data", "inspect", "x.npy", "--json"});
  ASSERT_TRUE(result.ending.ok()) << result.err;
  const auto json = nlohmann::json::parse(result.out);
  EXPECT_EQ(json["label_masks"], 1);
  EXPECT_EQ(json["counted_targets"], 0.5);
  EXPECT_EQ(
      nlohmann::json::parse(here_.yoke({"data", "inspect", "x.npy", "--mask", "none", "--json"})
                                .out)["counted_targets"],
      1);
  here_.folder().write("x.mask", std::string("\1\0\0\7", 4));
  const SubprocessResult damaged = here_.yoke({"data", "inspect", "x.npy"});
  EXPECT_EQ(damaged.ending.exit_code, 1);
  EXPECT_THAT(damaged.err, HasSubstr("\"x.mask\": byte 3 is 7; allowed"));
}

}  // namespace
}  // namespace yoke::testing
