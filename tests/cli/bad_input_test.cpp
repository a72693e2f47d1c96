// Makes user errors with the real program. Each must give one clear message and the documented exit
// code, without a hang or lost data. Each row has arguments, an exit code, and fragments of the
// message.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "core/checkpoint/manifest.hpp"
#include "tests/cli/metrics_rows.hpp"
#include "tests/cli/playground.hpp"

namespace yoke::testing {
namespace {

using ::testing::HasSubstr;
using ::testing::Not;

struct Row {
  std::vector<std::string> args;  // words after `yoke`
  int exit_code;
  std::vector<std::string> fragments;
};

void PrintTo(const Row& row, std::ostream* out) {
  for (const std::string& arg : row.args) *out << arg << ' ';
}

std::vector<std::string> train(std::vector<std::string> more) {
  more.insert(more.begin(), {"train", "run.toml"});
  return more;
}

class BadInput : public ::testing::TestWithParam<Row> {};

TEST_P(BadInput, IsRefusedWithOneClearMessage) {
  const Playground here;
  const SubprocessResult result = here.yoke(GetParam().args);
  EXPECT_FALSE(result.timed_out);
  EXPECT_EQ(result.ending.exit_code, GetParam().exit_code) << result.err;
  for (const std::string& fragment : GetParam().fragments)
    EXPECT_THAT(result.err, HasSubstr(fragment));
  EXPECT_THAT(result.out, Not(HasSubstr("step:")));
  EXPECT_FALSE(std::filesystem::exists(here.folder() / "runs"))
      << "nothing was started, nothing may be left";
}

INSTANTIATE_TEST_SUITE_P(
    Table,
    BadInput,
    ::testing::Values(
        // Configuration
        Row{train({"train.stepz=3"}), 2, {"train.stepz", "did you mean 'train.steps'"}},
        Row{train({"train.steps=many"}), 2, {"train.steps", "many"}},
        Row{train({"train.lr=-1"}), 2, {"train.lr = -1", "above 0"}},
        Row{train({"data.order=random"}), 2, {"data.order", "random", "shuffled", "sequential"}},
        Row{train({"train.lr=-1", "train.steps=-1", "nix=1"}),
            2,
            {"3 errors", "train.lr", "train.steps", "nix"}},
        Row{{"train", "nowhere.toml"}, 2, {"nowhere.toml", "no such file"}},
        Row{train({"parallel_backend="}), 2, {"parallel_backend=ptd on the command line"}},
        Row{train({"zero_stage=1"}), 2, {"unknown key 'zero_stage'", "BACKEND.zero_stage"}},
        // Layout and batch
        Row{train({"dp_degree=3", "--nproc", "2"}), 2, {"dp_degree", "3", "2"}},
        Row{train({"train.global_batch=5", "--nproc", "2"}),
            2,
            {"train.global_batch = 5", "4 or 6"}},
        Row{train({"train.micro_batch=3"}),
            2,
            {"train.micro_batch = 3", "train.global_batch = 4", "nearest"}},
        Row{train({"train.global_batch=100000"}), 2, {"train.global_batch = 100000", "text.txt"}},
        Row{train({"dp_shards=2", "--nproc", "2"}), 2, {"dp_shards = 2"}},
        Row{train({"--nproc", "0"}), 2, {"--nproc 0"}},
        Row{train({"--nproc", "2", "--virtual", "2"}), 2, {"--nproc", "--virtual"}},
        // Precision
        Row{train({"precision.param=bf16"}), 2, {"precision.param = bf16", "fp32 | fp64"}},
        Row{train({"precision.reduce=bf16"}), 2, {"less precise", "precision.param", "fp32, fp64"}},
        Row{train({"precision.param=fp64", "precision.reduce=fp32"}), 2, {"less precise", "fp64"}},
        // Data and model
        Row{train({"data.path=gone.txt"}), 2, {"gone.txt", "does not exist", "nearest names"}},
        Row{train({"data.path=data/novels.txt"}), 2, {"does not exist", "scripts/fetch_text"}},
        Row{train({"model.vocab=100"}), 2, {"model.vocab = 100", "256"}},
        Row{train({"model.preset=huge"}), 2, {"model.preset", "huge", "tiny"}},
        Row{train({"model.family=mamba"}), 2, {"mamba", "llama"}},
        Row{train({"model.kv_heads=3"}), 2, {"kv_heads"}},
        // Backend
        Row{train({"parallel_backend=seriel"}), 3, {"seriel", "did you mean 'serial'", "searched"}},
        Row{train({"parallel_backend=./serial.so"}), 3, {"./serial.so", "absolute"}},
        Row{train({"serial.speed=9"}), 2, {"speed"}},
        Row{train({"parallel_backend=seriel", "dp_degree=3", "--nproc", "2"}),
            3,
            {"seriel", "dp_degree"}},
        // Precision in fp8
        Row{train({"precision.param=fp8"}), 2, {"fp8", "precision.product"}},
        Row{train({"precision.fp8_recipe=rowwise"}), 2, {"has no effect", "precision.product"}},
        Row{train({"precision.product=fp8", "precision.fp8_skip=lm_haed"}),
            2,
            {"names no matrix", "did you mean 'lm_head'?"}},
        Row{train({"precision.product=fp8", "model.ffn_dim=40"}),
            2,
            {"gate_proj", "multiples of 16", "32 or 48", "precision.fp8_skip"}},
        // Checkpoints and generation
        Row{train({"checkpoint.resume=/nowhere"}), 2, {"/nowhere does not exist", "step-00001000"}},
        Row{{"generate", "nowhere", "--prompt", "a"}, 2, {"nowhere"}},
        Row{{"generate"}, 2, {"checkpoint"}},
        // Commands
        Row{{"trian", "run.toml"}, 2, {"trian", "train"}},
        Row{{"train"}, 2, {"CONFIG"}},
        Row{{"plan", "run.toml", "--nproc", "0"}, 2, {"--nproc 0"}}));

class Run : public ::testing::Test {
 protected:
  std::string checkpoint(int step) const {
    char name[64];
    std::snprintf(name, sizeof name, "runs/r/checkpoints/step-%08d", step);
    return name;
  }
  Playground here_;
};

TEST_F(Run, GoesToANumberedSiblingWhenItsFolderIsTaken) {
  EXPECT_TRUE(here_.yoke(train({})).ending.ok());
  EXPECT_TRUE(here_.yoke(train({})).ending.ok());
  EXPECT_TRUE(std::filesystem::exists(here_.folder() / "runs/r-2/metrics.jsonl"));
}

TEST_F(Run, IsNoCheckpointButHoldsSome) {
  ASSERT_TRUE(here_.yoke(train({})).ending.ok());
  for (const char* place : {"runs/r", "runs/r/checkpoints"}) {
    const SubprocessResult r = here_.yoke({"generate", place});
    EXPECT_EQ(r.ending.exit_code, 2);
    EXPECT_THAT(r.err, HasSubstr("the newest one is " + checkpoint(4)));
  }
}

TEST_F(Run, PrintsANoteOnce) {
  const SubprocessResult r = here_.yoke(train({"data.path=text.txt", "data.format=text"}));
  const std::string all = r.out + r.err, note = "note: the tokens are the bytes of a text";
  ASSERT_THAT(all, HasSubstr(note));
  EXPECT_EQ(all.find(note), all.rfind(note)) << all;
}

TEST_F(Run, IsListedUnderBothNamesOfTheCommand) {
  ASSERT_TRUE(here_.yoke(train({})).ending.ok());
  const std::string listed = here_.yoke({"checkpoint", "ls"}).out;
  EXPECT_THAT(listed, HasSubstr(checkpoint(4)));
  EXPECT_EQ(here_.yoke({"checkpoint", "list"}).out, listed);
}

TEST_F(Run, IsListedWithItsNumberOfStepsIfThatIsKnown) {
  ASSERT_TRUE(here_.yoke(train({})).ending.ok());
  const std::string whole = here_.yoke({"checkpoint", "ls"}).out;
  EXPECT_THAT(whole, HasSubstr(checkpoint(2) + "  2 of 4 "));
  EXPECT_THAT(whole, HasSubstr(checkpoint(4) + "  4 of 4 "));
  std::filesystem::remove(here_.folder() / "runs/r/config.resolved.toml");
  const std::string alone = here_.yoke({"checkpoint", "ls"}).out;
  EXPECT_THAT(alone, HasSubstr(checkpoint(2) + "  2    "));
  EXPECT_THAT(alone, HasSubstr(checkpoint(4) + "  4 of 4 ")) << "it was saved after the last step";
}

// A scheduler starts a run again that has lost a rank after its last save.
TEST_F(Run, ThatIsFinishedHasNothingLeftToDo) {
  ASSERT_TRUE(here_.yoke(train({})).ending.ok());
  const std::string metrics = read_file(here_.folder() / "runs/r/metrics.jsonl");
  const SubprocessResult again = here_.yoke(train({"checkpoint.resume=auto"}));
  EXPECT_EQ(again.ending.exit_code, 0);
  EXPECT_THAT(again.err, HasSubstr("runs/r is finished (step 4 of 4), and nothing is left to do"));
  EXPECT_THAT(again.out + again.err,
              ::testing::AllOf(HasSubstr("no steps"), Not(HasSubstr("saved"))));
  EXPECT_EQ(read_file(here_.folder() / "runs/r/metrics.jsonl"), metrics);
  EXPECT_FALSE(std::filesystem::exists(here_.folder() / "runs/r-2"));
}

TEST_F(Run, RefusesACheckpointOfAnotherModelAndKeepsIt) {
  ASSERT_TRUE(here_.yoke(train({})).ending.ok());
  const SubprocessResult other =
      here_.yoke(train({"model.layers=2", "train.steps=9", "checkpoint.resume=" + checkpoint(4)}));
  EXPECT_EQ(other.ending.exit_code, 2);
  EXPECT_THAT(other.err, HasSubstr("model.layers.1"));
  EXPECT_TRUE(
      here_.yoke({"generate", checkpoint(4), "--tokenizer", "bytes", "--tokens", "3"}).ending.ok());
}

// The plan function of this backend accepts all that `serial` accepts, but its description declares
// only fp64 and one rank.
TEST_F(Run, RefusesWhatABackendDoesNotDeclare) {
  const SubprocessResult r = here_.yoke(
      train({"--nproc", "2", "parallel_backend=" YOKE_FAULTY_DIR "/faulty_undeclared.so"}));
  EXPECT_EQ(r.ending.exit_code, 2);
  EXPECT_THAT(r.err,
              ::testing::AllOf(HasSubstr("dp_degree = 2; allowed: 1; faulty_undeclared declares "
                                         "nothing else (see yoke backends info faulty_undeclared)"),
                               HasSubstr("precision.param = fp32; allowed: fp64")));
}

TEST_F(Run, RefusesToResumeUnderAnotherConfiguration) {
  ASSERT_TRUE(here_.yoke(train({})).ending.ok());
  const SubprocessResult other =
      here_.yoke(train({"train.global_batch=2", "train.lr=1e-3", "checkpoint.resume=auto"}));
  EXPECT_EQ(other.ending.exit_code, 2);
  EXPECT_THAT(other.err, HasSubstr("another configuration (train.global_batch = 2 (4 before));"));
}

// Steps and learning rate may change; the run then continues in its folder.
TEST_F(Run, ResumesWithMoreStepsAndAnotherRate) {
  ASSERT_TRUE(here_.yoke(train({})).ending.ok());
  const SubprocessResult more =
      here_.yoke(train({"train.steps=6", "train.lr=1e-3", "checkpoint.resume=auto"}));
  EXPECT_TRUE(more.ending.ok()) << more.err;
  EXPECT_THAT(more.err,
              HasSubstr("runs/r continues with changed settings: train.lr = 0.001 (3e-4 before), "
                        "train.steps = 6 (4 before)"));
  std::vector<int> steps;
  for (const auto& [step, loss] : losses_by_step(here_.folder() / "runs/r")) steps.push_back(step);
  EXPECT_EQ(steps, (std::vector<int>{1, 2, 3, 4, 5, 6}));
  EXPECT_DOUBLE_EQ(metrics_rows(here_.folder() / "runs/r").back().at("lr"), 1e-3);
}

// The checkpoint decides whether it is the same run, even if files of the run folder have changed.
TEST_F(Run, ResumesByTheCheckpointAndNotByTheRunFolder) {
  ASSERT_TRUE(here_.yoke(train({})).ending.ok());
  // A resumed run that ends before it has saved has described itself in the folder all the same.
  for (const char* attempt : {"first", "second"}) {
    const SubprocessResult r =
        here_.yoke(train({"train.steps=6", "checkpoint.every=0", "checkpoint.resume=auto"}));
    EXPECT_TRUE(r.ending.ok()) << attempt << ": " << r.err;
  }
  const std::string resolved = here_.folder() / "runs/r/config.resolved.toml";
  std::string text = read_file(resolved);
  text.replace(text.find("clip = 1.0"), 10, "clip = 2.0");
  here_.folder().write("runs/r/config.resolved.toml", text);
  const SubprocessResult edited =
      here_.yoke(train({"train.clip=2", "train.steps=8", "checkpoint.resume=auto"}));
  EXPECT_EQ(edited.ending.exit_code, 2);
  EXPECT_THAT(edited.err, HasSubstr("another configuration (see its config.resolved.toml)"));
}

// Older releases did not save the digest of what may not change, so config.resolved.toml decides.
TEST_F(Run, ResumesTheCheckpointOfAnOlderRelease) {
  ASSERT_TRUE(here_.yoke(train({})).ending.ok());
  const std::string file = checkpoint(4) + "/manifest.json";
  Manifest manifest = parse_manifest(read_file(here_.folder() / file));
  manifest.info.fixed_digest.clear();
  here_.folder().write(file, to_text(manifest));
  const SubprocessResult other =
      here_.yoke(train({"train.clip=2", "train.steps=6", "checkpoint.resume=auto"}));
  EXPECT_EQ(other.ending.exit_code, 2);
  EXPECT_THAT(other.err, HasSubstr("another configuration (train.clip = 2.0 (1.0 before));"));
  const SubprocessResult more = here_.yoke(train({"train.steps=6", "checkpoint.resume=auto"}));
  EXPECT_TRUE(more.ending.ok()) << more.err;
  EXPECT_THAT(more.err, HasSubstr("continues with changed settings: train.steps = 6 (4 before)"));
}

TEST_F(Run, NamesADamagedCheckpoint) {
  ASSERT_TRUE(here_.yoke(train({})).ending.ok());
  const std::string weights = here_.folder() / (checkpoint(4) + "/model.safetensors");
  std::string bytes = read_file(weights);
  bytes[bytes.size() - 5] ^= 1;
  here_.folder().write(checkpoint(4) + "/model.safetensors", bytes);
  const SubprocessResult result = here_.yoke({"generate", checkpoint(4), "--tokenizer", "bytes"});
  EXPECT_EQ(result.ending.exit_code, 1);
  EXPECT_THAT(result.err, HasSubstr("model.safetensors"));
}

// An undetected error in config.json would silently change the model.
TEST_F(Run, NamesADamagedConfigOfACheckpoint) {
  ASSERT_TRUE(here_.yoke(train({})).ending.ok());
  const std::string file = checkpoint(4) + "/config.json";
  std::string text = read_file(here_.folder() / file);
  const size_t at = text.find("10000");  // rope_theta
  ASSERT_NE(at, std::string::npos) << text;
  text[at] = '2';
  here_.folder().write(file, text);
  for (const auto& words : {std::vector<std::string>{"generate", checkpoint(4), "--prompt", "a"},
                            train({"train.steps=9", "checkpoint.resume=" + checkpoint(4)}),
                            {"checkpoint", "verify", checkpoint(4)}}) {
    const SubprocessResult result = here_.yoke(words);
    EXPECT_EQ(result.ending.exit_code, 1) << words[0];
    EXPECT_THAT(result.err + result.out, HasSubstr("config.json")) << words[0];
  }
}

TEST_F(Run, SaysThatItStartsAnewIfThereIsNothingToResume) {
  const SubprocessResult first =
      here_.yoke(train({"checkpoint.every=0", "checkpoint.resume=auto"}));
  EXPECT_THAT(first.err, HasSubstr("there is no run runs/r yet; starting a new run"));
  const SubprocessResult second =
      here_.yoke(train({"checkpoint.every=0", "checkpoint.resume=auto"}));
  EXPECT_THAT(second.err, HasSubstr("has no checkpoint to resume from; starting a new run"));
  EXPECT_TRUE(first.ending.ok() && second.ending.ok());
}

TEST_F(Run, DoesNotStartAnewWhenAllCheckpointsAreDamaged) {
  ASSERT_TRUE(here_.yoke(train({"checkpoint.every=1", "checkpoint.keep=2"})).ending.ok());
  for (const int step : {3, 4}) here_.folder().write(checkpoint(step) + "/model.safetensors", "x");
  const SubprocessResult result =
      here_.yoke(train({"checkpoint.every=1", "checkpoint.resume=auto"}));
  EXPECT_EQ(result.ending.exit_code, 1);
  EXPECT_THAT(
      result.err,
      ::testing::AllOf(HasSubstr("step-00000003"),
                       HasSubstr("step-00000004"),
                       HasSubstr("none of the checkpoints in runs/r/checkpoints can be used"),
                       HasSubstr("checkpoint.resume=never")));
}

TEST_F(Run, VerifyRefusesTheNameOfAnotherStep) {
  ASSERT_TRUE(here_.yoke(train({})).ending.ok());
  std::filesystem::rename(here_.folder() / checkpoint(4), here_.folder() / checkpoint(7));
  const SubprocessResult result = here_.yoke({"checkpoint", "verify", checkpoint(7)});
  EXPECT_EQ(result.ending.exit_code, 1);
  EXPECT_THAT(result.err + result.out, HasSubstr("it holds step 4, not the one in its name"));
}

TEST_F(Run, SaysThatNothingWasSaved) {
  const SubprocessResult result = here_.yoke(train({"checkpoint.every=0"}));
  EXPECT_THAT(result.out, HasSubstr("nothing was saved: checkpoint.every = 0"));
  EXPECT_THAT(here_.yoke(train({})).out, ::testing::Not(HasSubstr("nothing was saved")));
}

std::vector<std::string> shell(const std::string& script) {
  return {"/bin/bash", "-c", script};
}

// Returns a script that starts a run and waits until it has logged its first steps, for at most
// five minutes.
std::string start_long_run(const std::string& folder, const std::string& arguments) {
  const std::string program = std::string(std::getenv("YOKE_BIN")) + "/yoke";
  return "cd " + folder + "; " + program +
         " train run.toml train.steps=100000 checkpoint.every=1000000 " + arguments +
         " > out 2> err & pid=$!; for i in $(seq 3000); do grep -q 'step: *3 ' out && break; sleep "
         "0.1; done; ";
}

TEST_F(Run, FinishesTheStepSavesAndExitsOnSigint) {
  const std::string script = start_long_run(here_.folder().path().string(), "--nproc 2") +
                             "kill -INT $pid; wait $pid; exit $?";
  const SubprocessResult result = run_subprocess(shell(script));
  EXPECT_EQ(result.ending.exit_code, 130) << read_file(here_.folder() / "err");
  EXPECT_THAT(read_file(here_.folder() / "out"), HasSubstr("saved runs/r/checkpoints/step-"));
  EXPECT_THAT(read_file(here_.folder() / "runs/r/exit.json"), HasSubstr("130"));
}

// Batch systems, terminals and `timeout` often send a signal to several processes of a run.
TEST_F(Run, SavesThoughTheSameSignalComesTwice) {
  const std::string script = start_long_run(here_.folder().path().string(), "--nproc 2") +
                             "kill -TERM $pid; sleep 0.02; kill -TERM $pid; wait $pid; exit $?";
  const SubprocessResult result = run_subprocess(shell(script));
  EXPECT_EQ(result.ending.exit_code, 75) << read_file(here_.folder() / "err");
  EXPECT_THAT(read_file(here_.folder() / "out"), HasSubstr("saved runs/r/checkpoints/step-"));
  EXPECT_THAT(read_file(here_.folder() / "runs/r/exit.json"), HasSubstr("75"));
}

TEST_F(Run, LeavesExitJsonWhenRankZeroIsKilled) {
  const std::string script = start_long_run(here_.folder().path().string(), "--nproc 2") +
                             "pkill -KILL -P $pid -f -- '--rank 0'; wait $pid; exit $?";
  const SubprocessResult result = run_subprocess(shell(script));
  EXPECT_EQ(result.ending.exit_code, 5) << read_file(here_.folder() / "err");
  EXPECT_THAT(read_file(here_.folder() / "runs/r/exit.json"),
              ::testing::AllOf(HasSubstr("\"code\":5"), HasSubstr("rank 0"), HasSubstr("SIGKILL")));
}

// The resumed run uses a worker that makes a plan and then dies as a rank, before it can remove the
// record of the first process.
TEST_F(Run, ReplacesTheExitRecordOfAnEarlierProcess) {
  const std::string real = std::string(std::getenv("YOKE_BIN")) + "/yoke-worker";
  const std::string worker = here_.folder().write(
      "dying-worker",
      "#!/bin/sh\n[ \"$1\" = --rank ] && kill -KILL $$\nexec " + real + " \"$@\"\n");
  std::filesystem::permissions(worker, std::filesystem::perms::owner_all);
  const std::string script = start_long_run(here_.folder().path().string(), "--nproc 1") +
                             "kill -INT $pid; wait $pid; " + std::getenv("YOKE_BIN") +
                             "/yoke train run.toml train.steps=100000 checkpoint.every=1000000 "
                             "checkpoint.resume=auto worker=" +
                             worker;
  const SubprocessResult result = run_subprocess(shell(script));
  EXPECT_EQ(result.ending.exit_code, 5) << result.err;
  EXPECT_THAT(read_file(here_.folder() / "runs/r/exit.json"),
              ::testing::AllOf(HasSubstr("\"code\":5"), HasSubstr("SIGKILL")));
}

TEST_F(Run, NamesTheRankThatDiedAndLeavesNoOrphan) {
  const std::string script = start_long_run(here_.folder().path().string(), "--nproc 2") +
                             "pkill -KILL -P $pid -f -- '--rank 1'; wait $pid; code=$?; "
                             "pgrep -P $pid && exit 99; exit $code";
  const SubprocessResult result = run_subprocess(shell(script));
  EXPECT_EQ(result.ending.exit_code, 5) << read_file(here_.folder() / "err");
  EXPECT_THAT(read_file(here_.folder() / "err"),
              ::testing::AllOf(HasSubstr("rank 1"), HasSubstr("SIGKILL")));
}

}  // namespace
}  // namespace yoke::testing
