#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "core/control/hub.hpp"
#include "core/control/member.hpp"
#include "tests/cli/yoke_install.hpp"
#include "yoke/error.hpp"

namespace yoke {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::Not;
using testing::read_file;
using ::testing::StartsWith;
using testing::YokeInstall;

constexpr const char* kRun =
    "parallel_backend = \"toy\"\n[model]\npreset = \"tiny\"\n[data]\npath = \"text\"\n";

// Returns a worker script. With --plan it prints a plan for `world` ranks; in every other mode it
// prints its arguments and runs `then`.
std::string worker(const std::string& then = "", int world = 2, const std::string& resume = "") {
  return "if [ \"$1\" = --plan ]; then echo \"$@\" > plan.words; echo '{\"world_size\": " +
         std::to_string(world) + ", \"run_dir\": \"runs/x\", \"resume\": \"" + resume +
         "\"}'; exit 0; fi\n"
         "echo \"words: $* threads: $OMP_NUM_THREADS\"\n" +
         then;
}

class Train : public ::testing::Test {
 protected:
  Train() {
    install.add_toy("toy");
    install.folder().write("run.toml", kRun);
    install.write_worker(worker());
  }
  SubprocessResult run(std::vector<std::string> args,
                       const std::vector<std::string>& variables = {}) const {
    args.insert(args.begin(), "train");
    return install.run(args, variables);
  }
  // Runs a script in the folder.
  SubprocessResult shell(const std::string& script) const {
    return run_subprocess(
        {"/bin/bash", "-c", "cd " + install.folder().path().string() + "; " + script});
  }
  // Returns the arguments of --plan, without the backend that it loads first.
  std::string plan_words() const {
    const std::string words = read_file(install.folder() / "plan.words");
    const size_t end = words.find(" --first-load ");
    EXPECT_NE(end, std::string::npos) << words;
    return words.substr(0, end);
  }

  YokeInstall install;
};

TEST_F(Train, PlansThenStartsEachRankWithThePlan) {
  const SubprocessResult r = run({"run.toml", "train.steps=3", "--nproc", "2"});
  EXPECT_EQ(r.ending.exit_code, 0);
  EXPECT_EQ(plan_words(), "--plan --world 2 run.toml train.steps=3");
  EXPECT_THAT(
      r.out,
      AllOf(::testing::ContainsRegex("words: --rank 0 --world 2 --rendezvous /tmp/yoke-[^ ]+ "
                                     "--run-dir runs/x run.toml train.steps=3 threads: 1\n"),
            HasSubstr("[rank 1] words: --rank 1 --world 2")));
  EXPECT_THAT(r.err, HasSubstr("yoke: 2 ranks, "));
}

TEST_F(Train, LeavesTheWorldToThePlanIfNobodyGivesIt) {
  install.write_worker(worker("", 1));
  const SubprocessResult r = run({"run.toml"});
  EXPECT_EQ(plan_words(), "--plan run.toml");
  EXPECT_THAT(r.out, HasSubstr("--rank 0 --world 1"));
}

TEST_F(Train, StartsOneWorkerForRanksAsThreads) {
  const SubprocessResult r = run({"run.toml", "--virtual", "4"});
  EXPECT_EQ(plan_words(), "--plan --world 4 run.toml");
  EXPECT_THAT(r.out, HasSubstr("words: --virtual 2 --run-dir runs/x run.toml"));
}

TEST_F(Train, HandsOnTheCheckpointToResumeFrom) {
  install.write_worker(worker("", 1, "runs/x/checkpoints/step-00000010"));
  EXPECT_THAT(run({"run.toml"}).out,
              HasSubstr("--run-dir runs/x --resume runs/x/checkpoints/step-00000010 run.toml"));
}

TEST_F(Train, LeavesTheUsersThreadsAlone) {
  const SubprocessResult r = run({"run.toml", "--nproc", "2"}, {"OMP_NUM_THREADS=7"});
  EXPECT_THAT(r.out, HasSubstr("threads: 7"));
  EXPECT_THAT(r.err, HasSubstr("2 ranks, 7 threads each (OMP_NUM_THREADS)"));
}

TEST_F(Train, LeavesNoRendezvousFolderBehind) {
  std::filesystem::create_directory(install.folder() / "tmp");
  run({"run.toml", "--nproc", "2"}, {"TMPDIR=" + (install.folder() / "tmp")});
  EXPECT_TRUE(std::filesystem::is_empty(install.folder() / "tmp"));
}

TEST_F(Train, ReturnsTheExitCodeOfTheRunAndNamesTheLogs) {
  install.write_worker(worker("kill -KILL $$"));
  const SubprocessResult r = run({"run.toml", "--nproc", "2"});
  EXPECT_EQ(r.ending.exit_code, 5);
  EXPECT_THAT(r.err,
              AllOf(HasSubstr("was killed by signal 9 (SIGKILL)"), HasSubstr("runs/x/logs")));
}

// All ranks have ended, and the launcher still writes their output, which nobody reads.
TEST_F(Train, IsNotStartedAgainAfterASignalBetweenTwoAttempts) {
  install.write_worker(
      worker("echo attempt >>attempts; yes 0123456789 | head -n 10000; exit 5", 1));
  const SubprocessResult r = shell(
      "mkfifo out; exec 3<>out; bin/yoke train run.toml --restarts 9 >out 2>err & pid=$!; "
      "until grep -q 'failed with exit code 5' err; do sleep 0.01; done; "
      "kill -TERM $pid; cat <&3 >/dev/null & reader=$!; "
      "wait $pid; code=$?; kill $reader; cat attempts err; exit $code");
  EXPECT_EQ(r.ending.exit_code, 143) << r.out;
  EXPECT_THAT(r.out,
              AllOf(StartsWith("attempt\nyoke: "),
                    HasSubstr("no further restart: stopped by signal 15 (SIGTERM)"),
                    Not(HasSubstr("again"))));
}

TEST_F(Train, StartsNoRankWhenThePlanIsRefused) {
  install.write_worker(
      "[ \"$1\" = --plan ] || echo rank >> started; echo 'two faults' >&2; exit 2");
  const SubprocessResult r = run({"run.toml", "--nproc", "2"});
  EXPECT_EQ(r.ending.exit_code, 2);
  EXPECT_EQ(r.err, "yoke: two faults\n");
  EXPECT_FALSE(std::filesystem::exists(install.folder() / "started"));
}

TEST_F(Train, NamesTheSignalThatKilledThePlan) {
  install.write_worker("echo last words >&2; kill -SEGV $$");
  const SubprocessResult r = run({"run.toml"});
  EXPECT_EQ(r.ending.exit_code, 1);
  EXPECT_THAT(r.err,
              HasSubstr("--plan was killed by signal 11 (SIGSEGV); it had printed:\nlast words\n"));
}

// ---- Wrong words ----

struct BadWords {
  std::vector<std::string> words;
  const char* message;
};
class TrainRefuses : public Train, public ::testing::WithParamInterface<BadWords> {};

TEST_P(TrainRefuses, BadWords) {
  const SubprocessResult r = run(GetParam().words);
  EXPECT_EQ(r.ending.exit_code, 2);
  EXPECT_THAT(r.err, HasSubstr(GetParam().message));
  EXPECT_EQ(r.out, "");
}

INSTANTIATE_TEST_SUITE_P(
    Train,
    TrainRefuses,
    ::testing::Values(
        BadWords{{}, "CONFIG is required"},
        BadWords{{"run.toml", "--nproc", "0"},
                 "--nproc 0: not a number of ranks; allowed: 1 to 4096"},
        BadWords{{"run.toml", "--nproc", "-2"}, "--nproc -2: not a number of ranks"},
        BadWords{{"run.toml", "--nproc", "two"}, "--nproc two: not a number of ranks"},
        BadWords{{"run.toml", "--nproc=1.5"}, "--nproc 1.5: not a number of ranks"},
        BadWords{{"run.toml", "--virtual", "0"}, "--virtual 0: not a number of ranks"},
        BadWords{{"run.toml", "--nproc", "2", "--virtual", "2"}, "exclude each other"},
        BadWords{{"run.toml", "--nprocs", "2"}, "'--nprocs'"},
        BadWords{{"run.tml"}, "did you mean 'run.toml'?"},
        BadWords{{"run.toml", "train.step=3"}, "did you mean 'train.steps'?"},
        BadWords{{"run.toml", "worker=/no/such/worker"}, "/no/such/worker does not exist"},
        BadWords{{"run.toml", "worker=my-worker"}, "must be an absolute path"}));

// ---- Backend and degrees ----

TEST_F(Train, RefusesAnUnknownBackendBeforeAPlanIsMade) {
  const SubprocessResult r = run({"run.toml", "parallel_backend=tow"});
  EXPECT_EQ(r.ending.exit_code, 3);
  EXPECT_THAT(r.err, HasSubstr("backend 'tow' not found; did you mean 'toy'?"));
  EXPECT_FALSE(std::filesystem::exists(install.folder() / "plan.words"));
}

TEST_F(Train, RefusesABackendThatCrashesInItsConstructor) {
  install.add_toy("toy_crash_on_load");
  const SubprocessResult r = run({"run.toml", "parallel_backend=toy_crash_on_load"});
  EXPECT_EQ(r.ending.exit_code, 3);
  EXPECT_THAT(r.err, HasSubstr("killed by signal 11 (SIGSEGV) while loading"));
}

TEST_F(Train, PrintsBothAWrongBackendAndDegreesThatDoNotFit) {
  const SubprocessResult r =
      run({"run.toml", "parallel_backend=tow", "dp_shards=3", "--nproc", "2"});
  EXPECT_EQ(r.ending.exit_code, 3);
  EXPECT_THAT(r.err,
              AllOf(HasSubstr("backend 'tow' not found"),
                    HasSubstr("(dp_shards 3) is 3 and does not divide 2 ranks")));
}

TEST_F(Train, PrintsBothAWrongBackendAndAFaultOfTheConfiguration) {
  const SubprocessResult r = run({"run.toml", "parallel_backend=tow", "dp_shards=0"});
  EXPECT_EQ(r.ending.exit_code, 3);
  EXPECT_THAT(r.err, AllOf(HasSubstr("backend 'tow' not found"), HasSubstr("dp_shards")));
}

TEST_F(Train, FindsABackendInTheFoldersOfTheRunFile) {
  install.add_toy("toy_later", "own");
  install.folder().write("own.toml",
                         "backend_path = [\"" + (install.folder() / "own") + "\"]\n" + kRun);
  EXPECT_EQ(run({"own.toml", "parallel_backend=toy_later"}).ending.exit_code, 0);
}

TEST_F(Train, UsesTheWorkerOfTheRunFile) {
  install.write_worker(worker("echo mine", 1), "own-worker");
  EXPECT_THAT(run({"run.toml", "worker=" + (install.folder() / "own-worker")}).out,
              HasSubstr("mine\n"));
}

// ---- Other launchers ----

using Variables = std::vector<std::string>;
const Variables kTorchrun = {"RANK=1",
                             "WORLD_SIZE=2",
                             "LOCAL_RANK=1",
                             "LOCAL_WORLD_SIZE=2",
                             "MASTER_ADDR=127.0.0.1",
                             "MASTER_PORT=29500"};
const Variables kMpirun = {"OMPI_COMM_WORLD_RANK=1",
                           "OMPI_COMM_WORLD_SIZE=2",
                           "OMPI_COMM_WORLD_LOCAL_RANK=1",
                           "OMPI_COMM_WORLD_LOCAL_SIZE=2",
                           "MASTER_ADDR=127.0.0.1",
                           "MASTER_PORT=29500"};
const Variables kSrun = {
    "SLURM_PROCID=1", "SLURM_STEP_NUM_TASKS=2", "SLURM_LOCALID=1", "SLURM_STEP_TASKS_PER_NODE=2"};

TEST_F(Train, BecomesOneRankUnderEveryLauncher) {
  for (const Variables& launcher : {kTorchrun, kMpirun, kSrun}) {
    const SubprocessResult r = run({"run.toml", "train.steps=3"}, launcher);
    EXPECT_EQ(r.ending.exit_code, 0) << r.err;
    EXPECT_THAT(r.out,
                ::testing::MatchesRegex("words: --env run.toml train.steps=3 threads: [1-9]+\n"));
  }
}

TEST_F(Train, LeavesTheUsersThreadsAloneUnderALauncher) {
  Variables variables = kTorchrun;
  variables.push_back("OMP_NUM_THREADS=7");
  EXPECT_THAT(run({"run.toml"}, variables).out, HasSubstr("threads: 7"));
}

TEST_F(Train, RefusesToStartRanksInARank) {
  const SubprocessResult r = run({"run.toml", "--nproc", "2"}, kTorchrun);
  EXPECT_EQ(r.ending.exit_code, 2);
  EXPECT_THAT(
      r.err,
      AllOf(HasSubstr("--nproc starts ranks"), HasSubstr("torchrun (RANK = 1, WORLD_SIZE = 2)")));
}

// Otherwise the others would wait for it until launch.join_timeout.
TEST_F(Train, ARankWithoutAWorkerTellsTheOthersWhy) {
  std::string fault;
  FileDescriptor listener = listen_for_members({"", "127.0.0.1", 0}, true, fault);
  const ControlAddress at{"", "127.0.0.1", near_port(listener.get())};
  HubOptions hub_options;
  hub_options.world_size = 2;
  hub_options.join_timeout = std::chrono::minutes(2);  // if nobody says why
  const Hub hub(
      std::move(listener), std::move(hub_options), std::function<void(const std::string&)>());
  Variables variables = kTorchrun;
  variables.push_back("MASTER_PORT=" + std::to_string(at.port));  // replaces the one above
  const SubprocessResult r = run({"run.toml", "worker=/no/such/worker"}, variables);
  EXPECT_EQ(r.ending.exit_code, 2) << r.err;
  EXPECT_THAT(r.err, HasSubstr("/no/such/worker does not exist"));
  MemberOptions rank_0;
  rank_0.world_size = 2;
  try {
    Member::join([&] { return at; }, rank_0, {});
    FAIL() << "rank 0 has met rank 1";
  } catch (const Error& e) {
    EXPECT_THAT(e.what(),
                AllOf(StartsWith("rank 1 ("),
                      HasSubstr("cannot take part"),
                      HasSubstr("/no/such/worker does not exist")));
  }
}

TEST_F(Train, StartsRanksInsideAnAllocationAndUnderALauncherOfOne) {
  for (const Variables& alone : {Variables{"SLURM_PROCID=0", "SLURM_NTASKS=8", "SLURM_LOCALID=0"},
                                 Variables{"OMPI_COMM_WORLD_RANK=0",
                                           "OMPI_COMM_WORLD_SIZE=1",
                                           "OMPI_COMM_WORLD_LOCAL_RANK=0",
                                           "OMPI_COMM_WORLD_LOCAL_SIZE=1"}}) {
    const SubprocessResult r = run({"run.toml", "--nproc", "2"}, alone);
    EXPECT_EQ(r.ending.exit_code, 0) << r.err;
    EXPECT_THAT(r.out, HasSubstr("[rank 1] words: --rank 1 --world 2"));
  }
}

TEST_F(Train, NamesWhatIsMissingOrContradicts) {
  const SubprocessResult r = run({"run.toml"}, {"RANK=0", "WORLD_SIZE=2"});
  EXPECT_EQ(r.ending.exit_code, 2);
  EXPECT_THAT(r.err,
              AllOf(HasSubstr("MASTER_ADDR is not set"), HasSubstr("LOCAL_RANK is not set")));
  Variables both = kTorchrun;
  both.insert(both.end(), {"OMPI_COMM_WORLD_RANK=0", "OMPI_COMM_WORLD_SIZE=2"});
  const SubprocessResult contradiction = run({"run.toml"}, both);
  EXPECT_EQ(contradiction.ending.exit_code, 2);
  EXPECT_THAT(
      contradiction.err,
      AllOf(HasSubstr("contradict"), HasSubstr("RANK = 1"), HasSubstr("OMPI_COMM_WORLD_RANK = 0")));
}

// ---- generate ----

TEST_F(Train, GenerateHandsItsWordsToTheWorker) {
  const SubprocessResult r =
      install.run({"generate", "runs/x", "--prompt", "In the beginning", "--seed", "3"});
  EXPECT_EQ(r.ending.exit_code, 0);
  EXPECT_EQ(r.out, "words: --generate runs/x --prompt In the beginning --seed 3 threads: \n");
}

TEST_F(Train, GenerateExplainsItself) {
  EXPECT_THAT(install.run({"generate", "--help"}).out,
              HasSubstr("usage: yoke generate CHECKPOINT"));
  EXPECT_EQ(install.run({"generate"}).ending.exit_code, 2);
}

}  // namespace
}  // namespace yoke
