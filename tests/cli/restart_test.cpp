// Restarts by `yoke train`, and `yoke train` on several machines, all of which are this one.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>
#include <thread>

#include "tests/cli/metrics_rows.hpp"
#include "tests/cli/playground.hpp"
#include "tests/cli/processes.hpp"
#include "yoke/text.hpp"

namespace yoke::testing {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::Not;

class Restart : public ::testing::Test {
 protected:
  // Runs a shell script in the folder; $yoke is the program.
  SubprocessResult shell(const std::string& script) {
    SubprocessOptions options;
    options.limit = std::chrono::seconds(1200);  // a limit for hangs
    return run_subprocess(
        {"/bin/bash",
         "-c",
         "cd " + here_.folder().path().string() +
             "; export OMP_NUM_THREADS=1; yoke=" + Playground::program() + "; " + script},
        options);
  }
  std::string run_dir(const std::string& name) { return here_.folder() / ("runs/" + name); }
  std::map<int, double> undisturbed(const std::string& keys) {
    const auto r = shell("$yoke train run.toml --nproc 2 run.dir=runs/calm " + keys);
    EXPECT_TRUE(r.ending.ok()) << r.err;
    return losses_by_step(run_dir("calm"));
  }
  // Kills rank 1 of a run with SIGKILL as soon as the run folder has the checkpoint.
  static std::string kill_after(const std::string& run, const std::string& checkpoint) {
    return "(until [ -e runs/" + run + "/checkpoints/" + checkpoint +
           " ] || [ ! -e run.toml ]; do sleep 0.05; done; pkill -KILL -f -- '[-]-rank 1 .*runs/" +
           run + "') & ";
  }
  Playground here_;
};

constexpr const char* kKeys = "train.steps=60 checkpoint.every=10 checkpoint.keep=9";

TEST_F(Restart, ContinuesFromTheNewestCheckpointWithEqualLosses) {
  const auto r = shell(kill_after("killed", "step-00000010") +
                       "$yoke train run.toml --nproc 2 --restarts 2 run.dir=runs/killed " + kKeys);
  ASSERT_EQ(r.ending.exit_code, 0) << r.out << r.err;
  EXPECT_THAT(r.err,
              AllOf(HasSubstr("was killed by signal 9"),
                    HasSubstr("starting the ranks again, from runs/killed/checkpoints/step-")));
  EXPECT_EQ(losses_by_step(run_dir("killed")), undisturbed(kKeys));
}

// The state files have no name, so the kernel deletes them when their process ends. A restart needs
// only the checkpoint.
TEST_F(Restart, ContinuesIfStateInFilesIsLost) {
  const std::string state = here_.folder() / "state";
  std::filesystem::create_directory(state);
  const std::string keys =
      std::string(kKeys) + " parallel_backend=deepspeed_stub" + " deepspeed_stub.zero_stage=3";
  const std::string files = " deepspeed_stub.offload_optimizer_device=nvme" +
                            (" deepspeed_stub.offload_optimizer_nvme_path=" + state) +
                            " deepspeed_stub.offload_param_device=nvme" +
                            (" deepspeed_stub.offload_param_nvme_path=" + state) +
                            " deepspeed_stub.offload_param_max_in_cpu=0";
  const auto r =
      shell(kill_after("killed", "step-00000010") +
            "$yoke train run.toml --nproc 2 --restarts 2 run.dir=runs/killed " + keys + files);
  ASSERT_EQ(r.ending.exit_code, 0) << r.out << r.err;
  EXPECT_THAT(r.err,
              AllOf(HasSubstr("was killed by signal 9"),
                    HasSubstr("starting the ranks again, from runs/killed/checkpoints/step-")));
  EXPECT_EQ(losses_by_step(run_dir("killed")), undisturbed(keys));
  EXPECT_TRUE(std::filesystem::is_empty(state));
}

TEST_F(Restart, OfARunThatIsAliveIsRefusedAndChangesNothing) {
  const auto r = shell(
      "run='train run.toml run.dir=runs/one train.steps=100000 checkpoint.every=100 "
      "checkpoint.keep=1000'; $yoke $run >first.log 2>&1 & first=$!; "
      "until [ -e runs/one/checkpoints/step-00000100 ] || ! kill -0 $first; do sleep 0.05; done; "
      "$yoke $run checkpoint.resume=auto; code=$?; cat runs/one/exit.json; "
      "kill $first; wait $first; echo first $?; exit $code");
  EXPECT_EQ(r.ending.exit_code, 2) << r.out << r.err;
  EXPECT_THAT(r.err,
              AllOf(HasSubstr("run.dir = runs/one: another run is writing to this folder ("),
                    HasSubstr(", process "),
                    HasSubstr("exit.json: No such file")));
  EXPECT_THAT(r.out, HasSubstr("first 75"));
}

TEST_F(Restart, IsNotMadeWithoutBeingAskedFor) {
  const auto r = shell(kill_after("killed", "step-00000010") +
                       "$yoke train run.toml --nproc 2 run.dir=runs/killed train.steps=100000 "
                       "checkpoint.every=10");
  EXPECT_EQ(r.ending.exit_code, 5) << r.out << r.err;
  EXPECT_THAT(r.err, Not(HasSubstr("again")));
  EXPECT_THAT(r.err,
              AllOf(HasSubstr("to continue after step "),
                    HasSubstr(", run the same command with checkpoint.resume=auto")));
}

TEST_F(Restart, IsNotMadeAfterAnError) {
  const auto r = shell(
      "$yoke train run.toml --nproc 2 --restarts 5 train.lr=1e30 train.clip=0 "
      "train.steps=1000 checkpoint.every=0");
  EXPECT_EQ(r.ending.exit_code, 1) << r.out << r.err;
  EXPECT_THAT(r.err, Not(HasSubstr("again")));
}

// Rank 1 is stopped, so rank 0 cannot finish its step and ends as if rank 1 had been lost.
TEST_F(Restart, IsNotMadeAfterASignalOfTheUser) {
  const auto r = shell(
      "$yoke train run.toml --nproc 2 --restarts 5 run.dir=runs/ended train.steps=3000 "
      "checkpoint.every=0 & pid=$!; until [ -s runs/ended/metrics.jsonl ]; do sleep 0.05; done; "
      "pkill -STOP -f -- '[-]-rank 1 .*runs/ended'; kill -TERM $pid; sleep 8; "
      "pkill -CONT -f -- '[-]-rank 1 .*runs/ended'; wait $pid");
  EXPECT_NE(r.ending.exit_code, 0) << r.out;
  EXPECT_THAT(r.err, HasSubstr("stopping after this step"));
  EXPECT_THAT(r.err, Not(HasSubstr("starting the ranks again")));
}

TEST_F(Restart, EndsWhenNoAttemptSavesAStep) {
  const auto r = shell(
      "(while [ -e run.toml ] && [ ! -e done ]; do pkill -KILL -f -- '[-]-rank 1 .*runs/doomed'; "
      "sleep 0.1; done) & $yoke train run.toml --nproc 2 --restarts 50 "
      "run.dir=runs/doomed train.steps=100000; code=$?; touch done; exit $code");
  EXPECT_EQ(r.ending.exit_code, 5) << r.out << r.err;
  EXPECT_THAT(r.err, HasSubstr("no further restart: 3 attempts in a row have not saved a step"));
}

TEST_F(Restart, ReachesAllMachinesOfTheRun) {
  const std::string common = concat("--nproc 1 --restarts 2 --master 127.0.0.1:", free_port()) +
                             " run.dir=runs/two " + kKeys;
  const auto r =
      shell(kill_after("two", "step-00000010") + "$yoke train run.toml --nnodes 2 --node-rank 1 " +
            common + " > other 2>&1 & other=$!; $yoke train run.toml --nnodes 2 --node-rank 0 " +
            common + "; code=$?; wait $other; echo other: $?; exit $code");
  ASSERT_EQ(r.ending.exit_code, 0) << r.out << r.err << read_file(here_.folder() / "other");
  EXPECT_THAT(r.out, HasSubstr("other: 0"));
  EXPECT_THAT(r.err, HasSubstr("rank 1 ("));
  EXPECT_THAT(read_file(here_.folder() / "other"), HasSubstr("rank 1 of 2 (process"));
  EXPECT_EQ(losses_by_step(run_dir("two")), undisturbed(kKeys));
}

TEST_F(Restart, AMachineThatCannotTakePartTellsTheOthers) {
  const std::string common = concat("--nnodes 2 --nproc 1 --master 127.0.0.1:", free_port());
  const auto r = shell("$yoke train run.toml --node-rank 1 train.setps=3 " + common +
                       " & other=$!; $yoke train run.toml --node-rank 0 " + common +
                       "; code=$?; wait $other; echo other: $?; exit $code");
  EXPECT_EQ(r.ending.exit_code, 2) << r.out << r.err;
  EXPECT_THAT(r.out, HasSubstr("other: 2"));
  EXPECT_THAT(r.err,
              AllOf(HasSubstr("rank 1 ("), HasSubstr("cannot take part"), HasSubstr("setps")));
}

TEST_F(Restart, FlagsAboutMachinesThatMakeNoSenseAreRefused) {
  const std::pair<const char*, const char*> cases[] = {
      {"--node-rank 0", "no effect without --nnodes"},
      {"--master a:1", "no effect without --nnodes"},
      {"--nnodes 2 --node-rank 0 --nproc 1", "needs --master HOST:PORT"},
      {"--nnodes 2 --node-rank 0 --nproc 1 --master host", "needs --master HOST:PORT"},
      {"--nnodes 2 --node-rank 0 --nproc 1 --master host:99999", "needs --master HOST:PORT"},
      {"--nnodes 2 --nproc 1 --master a:1", "needs --node-rank"},
      {"--nnodes 2 --node-rank 2 --nproc 1 --master a:1", "allowed: 0 to 1"},
      {"--nnodes 2 --node-rank 0 --master a:1", "needs --nproc"},
      {"--nnodes 0 --node-rank 0 --nproc 1 --master a:1", "not a number of machines"},
      {"--nnodes 2 --node-rank 0 --virtual 2 --master a:1", "needs --nproc"},
      {"--restarts -1", "not a number of restarts"},
  };
  for (const auto& [flags, text] : cases) {
    const auto r = shell(concat("$yoke train run.toml ", flags));
    EXPECT_EQ(r.ending.exit_code, 2) << flags;
    EXPECT_THAT(r.err, HasSubstr(text)) << flags;
  }
}

// ---- A run that hangs ----

TEST_F(Restart, ARunThatHangsIsExplained) {
  const auto r = shell(
      "(until [ -s runs/hung/metrics.jsonl ]; do sleep 0.05; done; pkill -STOP -f "
      "-- '[-]-rank 1 .*runs/hung'; sleep 8; pkill -CONT -f -- '[-]-rank 1 "
      ".*runs/hung') & $yoke train run.toml --nproc 2 run.dir=runs/hung "
      "train.steps=1000000 checkpoint.every=0");
  EXPECT_EQ(r.ending.exit_code, 5) << r.out << r.err;
  EXPECT_THAT(r.err, AllOf(HasSubstr("rank 1 ("), HasSubstr("has not answered for 2")));
  const auto why = shell("$yoke doctor runs/hung");
  EXPECT_EQ(why.ending.exit_code, 0) << why.err;
  EXPECT_THAT(why.out,
              AllOf(HasSubstr("the run ended with exit code 5"),
                    HasSubstr("rank 0 ("),
                    HasSubstr("its main thread:\n      ")));
}

TEST_F(Restart, ARankTellsWhereItIsWhenAsked) {
  const auto r = shell(
      "(until [ -s runs/asked/metrics.jsonl ]; do sleep 0.05; done; pkill -QUIT -f "
      "-- '[-]-rank 0 .*runs/asked'; until [ -s runs/asked/logs/hang_rank_000.json "
      "]; do sleep 0.05; done; pkill -TERM -f -- '[-]-rank 1 .*runs/asked') & $yoke "
      "train run.toml --nproc 2 run.dir=runs/asked train.steps=1000000");
  EXPECT_EQ(r.ending.exit_code, 75) << r.out << r.err;
  const auto why = shell("$yoke doctor runs/asked");
  EXPECT_THAT(why.out, AllOf(HasSubstr("exit code 75"), HasSubstr("cause: SIGQUIT")));
}

}  // namespace
}  // namespace yoke::testing
