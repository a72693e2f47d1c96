// Tests `yoke compare` through the real program, on backends that have one fault each.
#include <filesystem>

#include "tests/compare/compare_fixture.hpp"

namespace yoke {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::Not;

TEST_F(Compare, FindsThatBackendsAgree) {
  auto all = cases(
      {"--backends", "serial,ptd", "--case", "again:parallel_backend=serial", "--steps", "4"}, 0);
  EXPECT_EQ(all.at("serial").at("verdict").at("level"), "L1");
  EXPECT_EQ(all.at("ptd").at("verdict").at("level"), "L1");
  EXPECT_EQ(json.at("judged_against"), "reference");
  for (const Json& pair : json.at("pairs")) {
    const bool same = pair.at("a") == "serial" && pair.at("b") == "again";
    EXPECT_EQ(pair.at("level"), same ? "L0" : "L1") << pair;
  }
  EXPECT_GT(all.at("ptd").at("traffic").size(), 0u);
  EXPECT_TRUE(all.at("serial").at("repeatable"));
}

TEST_F(Compare, NamesEveryFaultItsFirstStepAndTensor) {
  const Found faults[] = {
      {"missing_reduction", "missing_reduction", 1, kFirst},
      {"double_reduction", "wrong_scale", 1, kFirst},
      {"local_clip", "local_clip", 1, kFirst},
      {"low_precision", "low_precision", 1, kFirst},
      {"same_samples", "same_samples", 1, kFirst},
      {"wrong_update", "wrong_update", 2, kFirst},
      {"initial_values", "initial_values", 0, "model.layers.0.self_attn.o_proj.weight"},
  };
  std::vector<std::string> args{"--steps", "4", "--case", faulty_case("rounding")};
  for (const Found& f : faults) args.insert(args.end(), {"--case", faulty_case(f.fault)});
  auto all = cases(args, 4);
  for (const Found& f : faults) expect_found(all, f);
  EXPECT_TRUE(all.at("rounding").at("passed"));  // different rounding is not a fault
}

// With Muon, the moments of matrices decay at another rate than the others.
TEST_F(Compare, NamesFaultsWithMuon) {
  auto all = cases({"--steps",
                    "4",
                    "--case",
                    faulty_case("wrong_update"),
                    "--case",
                    faulty_case("double_reduction"),
                    "train.optimizer=muon",
                    "train.momentum=0.95"},
                   4);
  expect_found(all, {"wrong_update", "wrong_update", 2, kFirst});
  expect_found(all, {"double_reduction", "wrong_scale", 1, kFirst});
}

TEST_F(Compare, NamesAMeanOfMeansWhereRanksHaveUnevenlyManyTargets) {
  auto all = cases({"--backends",
                    "serial",
                    "--steps",
                    "4",
                    "--case",
                    faulty_case("mean_of_means"),
                    "data.pad_token=32"},
                   4);
  // In the first two steps both ranks have the same number of targets, so the fault has no effect.
  expect_found(all, {"mean_of_means", "mean_of_means", 3, kFirst});
  EXPECT_TRUE(all.at("serial").at("passed"));
}

TEST_F(Compare, ContinuesWithoutACaseThatFails) {
  auto all = cases({"--case",
                    faulty_case("crash"),
                    "--case",
                    "bad:parallel_backend=serial,dp_shards=2",
                    "--case",
                    "serial:parallel_backend=serial",
                    "--steps",
                    "4"},
                   1);
  EXPECT_TRUE(all.at("serial").at("passed"));
  EXPECT_THAT(all.at("crash").at("failure"), HasSubstr("exit code 5"));
  EXPECT_THAT(all.at("bad").at("failure"), HasSubstr("dp_shards"));
}

// Every case here hangs, because on a busy machine even a good case may exceed any limit that a
// test can wait for. The reference has the same limit, so it may or may not end in time.
TEST_F(Compare, ContinuesWithoutACaseThatHangs) {
  auto all = cases({"--case",
                    faulty_case("hang"),
                    "--external",
                    "asleep=sleep 36000",
                    "--timeout",
                    "5",
                    "--steps",
                    "4"},
                   1);
  for (const char* name : {"hang", "asleep"})
    EXPECT_THAT(all.at(name).at("failure"), HasSubstr("did not end within 5 s (--timeout)"));
}

// The only case would be compared with itself.
TEST_F(Compare, FailsIfOnlyTheReferenceFails) {
  auto all = cases(
      {"parallel_backend=" + faulty("crash_alone"), "--case", "two:train.steps=2", "--steps", "2"},
      1);
  EXPECT_EQ(all.at("two").at("failure"), "");
}

// Without any case, a backend that refuses the run is no case that fails.
TEST_F(Compare, ComparesTheBackendsThatAcceptTheRunIfThereAreNoCases) {
  const std::string lib = std::string(std::getenv("YOKE_BIN")) + "/../lib/yoke/backends/";
  if (!std::filesystem::exists(lib + "ptd.so")) GTEST_SKIP() << "no backend for bf16 is built";
  const auto all = cases({"parallel_backend=ptd", "precision.param=bf16", "--steps", "2"}, 0);
  EXPECT_EQ(all.count("ptd"), 1u);
  EXPECT_EQ(all.count("serial"), 0u);
  const SubprocessResult none = run({"tp_degree=3", "--nproc", "2"});
  EXPECT_EQ(none.ending.exit_code, 2) << none.err;
  EXPECT_THAT(none.err, HasSubstr("backend 'serial' does not accept the run: "));
}

// Returns an external case. It runs the shell command `then` if the file that $YOKE_COMPARE_RUN
// names, which describes the run, is not empty.
std::string peer(const std::string& then) {
  return "peer=test -s $YOKE_COMPARE_RUN && " + then;
}

TEST_F(Compare, ComparesAnExternalCommandByWhatItWrites) {
  auto first = cases({"--backends", "serial", "--steps", "3"}, 0);
  std::string lines;
  for (const Json& s : first.at("serial").at("steps"))
    lines += Json{{"step", s.at("step")}, {"loss", s.at("loss")}}.dump() + "\n";
  playground.folder().write("good.jsonl", lines);
  const std::string good = peer("cp good.jsonl $YOKE_COMPARE_OUT");
  auto all = cases({"--backends", "serial", "--external", good, "--steps", "3"}, 0);
  EXPECT_EQ(all.at("peer").at("verdict").at("level"), "L1");
  // A peer may abort while it shuts down; its results count nevertheless.
  cases({"--backends", "serial", "--external", good + "; exit 134", "--steps", "3"}, 0);
  all = cases({"--backends",
               "serial",
               "--external",
               peer("echo garbage > $YOKE_COMPARE_OUT"),
               "--steps",
               "3"},
              1);
  EXPECT_THAT(all.at("peer").at("failure"), HasSubstr("not a JSON object: garbage"));
  all = cases({"--backends", "serial", "--external", peer("echo no luck; exit 3"), "--steps", "3"},
              1);
  EXPECT_THAT(
      all.at("peer").at("failure"),
      AllOf(HasSubstr("exit code 3: it wrote nothing"), HasSubstr("printed last: no luck")));
}

TEST_F(Compare, FailsAGate) {
  const SubprocessResult r = run({"--backends",
                                  "serial",
                                  "--nproc",
                                  "2",
                                  "--repeats",
                                  "1",
                                  "--steps",
                                  "2",
                                  "--gate",
                                  "loss<=0",
                                  "--format",
                                  "csv"});
  EXPECT_EQ(r.ending.exit_code, 4);
  EXPECT_THAT(r.err, HasSubstr("gate loss<=0 fails for serial: "));
  EXPECT_THAT(r.out, HasSubstr("case,ranks,backend,layout,passed,level"));
}

// With such a learning rate, a change of the last bit grows to more than 1 % within 20 steps.
TEST_F(Compare, TakesRoundingThatGrewForRounding) {
  auto all = cases({"--case",
                    "serial:parallel_backend=serial",
                    "--case",
                    faulty_case("wrong_update"),
                    "--steps",
                    "20",
                    "train.lr=0.1",
                    "train.warmup=0",
                    "precision.reduce=fp32"},
                   4);
  const Json& verdict = all.at("serial").at("verdict");
  EXPECT_EQ(verdict.at("level"), "L1");
  EXPECT_GT(verdict.at("loss"), 1e-4);
  EXPECT_THAT(verdict.at("exceeded"), HasSubstr("is allowed"));
  EXPECT_EQ(verdict.at("rounding").at("explains"), true);
  EXPECT_FALSE(all.at("wrong_update").at("passed"));
  EXPECT_EQ(all.at("wrong_update").at("verdict").at("rounding").at("explains"), false);
}

// A comparison neither evaluates nor keeps checkpoints, whatever the run file says about them.
TEST_F(Compare, TakesARunFileThatEvaluates) {
  const SubprocessResult r = run({"--backends",
                                  "serial",
                                  "--nproc",
                                  "2",
                                  "--repeats",
                                  "1",
                                  "--steps",
                                  "2",
                                  "eval.every=1",
                                  "eval.path=text.txt",
                                  "checkpoint.best=true"});
  EXPECT_EQ(r.ending.exit_code, 0) << r.err;
  const std::string dir = playground.folder() / "runs/r-compare/serial/run1";
  EXPECT_THAT(testing::read_file(dir + "/config.resolved.toml"), HasSubstr("holdout = 0.0"))
      << "as in the job, no training data is held out";
}

TEST_F(Compare, WritesAReportAndColoursOnlyATerminal) {
  const SubprocessResult r = run({"--case",
                                  faulty_case("missing_reduction"),
                                  "--nproc",
                                  "2",
                                  "--repeats",
                                  "1",
                                  "--steps",
                                  "2",
                                  "data.path=[\"text.txt\"]",
                                  "-o",
                                  "report.html"},
                                 {"TERM=xterm"});
  EXPECT_EQ(r.ending.exit_code, 4);
  EXPECT_THAT(r.out + r.err, Not(HasSubstr("\033[")));
  std::ifstream file(playground.folder().path() / "report.html");
  const std::string html{std::istreambuf_iterator<char>(file), {}};
  EXPECT_THAT(html,
              AllOf(HasSubstr("missing reduction"),
                    HasSubstr("yoke compare run.toml"),
                    HasSubstr("'data.path=[&quot;text.txt&quot;]' -o report.html")));
}

// ---- Bad input ----

struct BadWords {
  std::vector<std::string> words;
  int exit_code;
  const char* message;
};
class CompareRefuses : public Compare, public ::testing::WithParamInterface<BadWords> {};

TEST_P(CompareRefuses, BeforeAnythingRuns) {
  const SubprocessResult r = run(GetParam().words);
  EXPECT_EQ(r.ending.exit_code, GetParam().exit_code) << r.err;
  EXPECT_THAT(r.err, HasSubstr(GetParam().message));
  EXPECT_FALSE(std::filesystem::exists(playground.folder().path() / "runs"));
}

INSTANTIATE_TEST_SUITE_P(
    Compare,
    CompareRefuses,
    ::testing::Values(
        BadWords{{"--backends", "serial,pdt"}, 3, "backend 'pdt' not found"},
        BadWords{
            {"--backends", ""}, 2, "--backends is empty; allowed: names of backends, such as A,B"},
        BadWords{{"--backends", "serial,serial"}, 2, "two cases have the name 'serial'"},
        BadWords{{"--case", "serial"}, 2, "expected NAME:key=value"},
        BadWords{{"--case", "a:parallel_backend=serial", "--case", "b:train.global_batch=8"},
                 2,
                 "case 'b' is not comparable: train.global_batch = 8, but 4 in case 'a'"},
        BadWords{{"--case", "a:seed=1", "--case", "b:seed=2"}, 2, "seed = 2, but 1 in case 'a'"},
        BadWords{{"--case", "a:model.layers=1", "--case", "b:model.layers=2"}, 2, "model.layers"},
        BadWords{{"--case", "a:train.stepz=2", "--nproc", "2"}, 2, "did you mean 'train.steps'?"},
        BadWords{
            {"--backends", "serial"}, 2, "one case with one rank has nothing to be compared with"},
        BadWords{{"--backends", "serial", "--nproc", "0"}, 2, "--nproc 0: allowed"},
        BadWords{{"--backends", "serial", "--level", "L9"}, 2, "--level L9; allowed: L0, L1, L2"},
        BadWords{{"--backends", "serial", "--gate", "speed>=1"}, 2, "unknown metric 'speed'"},
        BadWords{{"--backends", "serial", "--format", "xml"}, 2, "xml"},
        BadWords{{"--backends", "serial", "--nproc", "2", "-o", "/no/such/folder/r.html"},
                 2,
                 "-o /no/such/folder/r.html cannot be written: No such file"},
        BadWords{
            {"--backends", "serial", "--nproc", "2", "--json-file", "/"}, 2, "cannot be written"}));

// ---- The verification in every run ----

TEST_F(Compare, TrainEndsWhereReplicasDiffer) {
  const SubprocessResult r = playground.yoke(
      {"train", "run.toml", "--nproc", "2", "parallel_backend=" + faulty("missing_reduction")});
  EXPECT_EQ(r.ending.exit_code, 1);
  EXPECT_THAT(
      r.err + r.out,
      AllOf(HasSubstr("verify.every: step 1: 'model.embed_tokens.weight' on rank 1 differs"),
            HasSubstr("verify.every=0 turns this check off")));
  // Without this check, the ranks still compare the norms that they report.
  std::vector<std::string> words = {"train",
                                    "run.toml",
                                    "--nproc",
                                    "2",
                                    "verify.every=0",
                                    "parallel_backend=" + faulty("missing_reduction")};
  const SubprocessResult unverified = playground.yoke(words);
  EXPECT_EQ(unverified.ending.exit_code, 1);
  EXPECT_THAT(unverified.err,
              AllOf(HasSubstr("the ranks report different results: rank 0 step 1: loss_sum "),
                    HasSubstr("comm.check=off turns this check off")));
  words.push_back("comm.check=off");
  EXPECT_EQ(playground.yoke(words).ending.exit_code, 0);
}

TEST_F(Compare, TrainEndsWhereARankTrainsOnSamplesOfAnother) {
  const SubprocessResult r = playground.yoke(
      {"train", "run.toml", "--nproc", "2", "parallel_backend=" + faulty("same_samples")});
  EXPECT_EQ(r.ending.exit_code, 1);
  EXPECT_THAT(
      r.err + r.out,
      HasSubstr("step 1: rank 1 (data rank 1) did not train on its samples 2, 3, but on samples of "
                "data rank 0"));
}

}  // namespace
}  // namespace yoke
