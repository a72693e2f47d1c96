// `yoke train --nnodes MIN:MAX`: machines come and go. All of them are this one.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>

#include "tests/cli/metrics_rows.hpp"
#include "tests/cli/playground.hpp"
#include "tests/cli/processes.hpp"
#include "yoke/text.hpp"

namespace yoke::testing {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::Not;

// Another number of ranks sums in another order.
constexpr double kTolerance = 2e-6;

class Elastic : public ::testing::Test {
 protected:
  // Runs a shell script in the folder. These functions are for it:
  //   machine NAME NODE_RANK ARGUMENTS   starts a launcher, whose process is $NAME and whose output
  //                                      is in the file NAME
  //   until_text FILE TEXT [COUNT]       waits until the file has the text in COUNT lines
  //   until_steps COUNT                  waits until the run has done COUNT more steps
  //                                      (both end when no launcher is left)
  //   ended NAME                         waits until the launcher has ended and prints "NAME: CODE"
  SubprocessResult shell(const std::string& script) {
    const std::string start = "cd " + here_.folder().path().string() +
                              "; export OMP_NUM_THREADS=1; yoke=" + Playground::program() +
                              concat("; master=127.0.0.1:", free_port(), "\n");
    constexpr const char* kFunctions = R"sh(
machine() {
  local name=$1 rank=$2; shift 2
  $yoke train run.toml --node-rank $rank --nproc 1 --master $master run.dir=runs/r "$@" >$name 2>&1 &
  eval "$name=$!"
}
lives() { sleep 0.05; [ -n "$(jobs -r)" ]; }
until_text() { until [ "$(grep -c "$2" $1)" -ge ${3:-1} ]; do lives || break; done; }
steps() { cat runs/r/metrics.jsonl 2>/dev/null | wc -l; }
until_steps() { local s=$(($(steps) + $1)); until [ $(steps) -ge $s ]; do lives || break; done; }
ended() { wait ${!1}; echo "$1: $?"; }
)sh";
    SubprocessOptions options;
    options.limit = std::chrono::seconds(1200);  // a limit for hangs
    return run_subprocess({"/bin/bash", "-c", start + kFunctions + script}, options);
  }
  std::string output(const std::string& name) { return read_file(here_.folder() / name); }
  std::map<int, double> losses(const std::string& run) {
    return losses_by_step(here_.folder() / ("runs/" + run));
  }
  Playground here_;
};

TEST_F(Elastic, ContinuesWithoutALostMachineAndTakesItBack) {
  const std::string keys = "train.steps=900 checkpoint.every=20 launch.elastic_wait=1";
  const auto r = shell("common='--nnodes 1:2 --restarts 1 " + keys + "'" + R"(
machine a 0 $common; machine b 1 $common
until_steps 30
kill -KILL $b
until_text a 'starting the ranks of 1 machine: 0 ('
until_steps 30
machine c 1 $common
until_text a 'starting the ranks of 2 machines: 0 (' 2
ended a; ended c
$yoke train run.toml --nproc 2 run.dir=runs/calm )" +
                       keys);
  const std::string texts = r.out + r.err + output("a") + output("c");
  ASSERT_THAT(r.out, AllOf(HasSubstr("a: 0\n"), HasSubstr("c: 0\n"))) << texts;
  EXPECT_THAT(output("a"),
              AllOf(HasSubstr("machine 1 ("),
                    HasSubstr("has come; the ranks save, and all machines start them again"),
                    Not(HasSubstr("no further restart"))));
  EXPECT_THAT(output("c"), Not(HasSubstr("failed")));
  const auto disturbed = losses("r"), calm = losses("calm");
  ASSERT_EQ(disturbed.size(), 900u);
  ASSERT_EQ(calm.size(), 900u);
  for (const auto& [step, loss] : calm)
    EXPECT_NEAR(disturbed.at(step), loss, kTolerance * std::abs(loss)) << "step " << step;
}

TEST_F(Elastic, WithoutRestartsStillTakesAMachineThatComes) {
  const auto r = shell(R"(
common='--nnodes 1:2 train.steps=100000 checkpoint.every=20 launch.elastic_wait=0'
machine a 0 $common
until_steps 10
machine b 1 $common
until_text a 'starting the ranks of 2 machines'
until_steps 10
kill -KILL $b
ended a)");
  EXPECT_THAT(r.out, HasSubstr("a: 5\n")) << output("a") << output("b");
  EXPECT_THAT(output("a"), Not(HasSubstr("no further restart")));
}

TEST_F(Elastic, DoesNotInterruptARunThatSavesNothing) {
  const auto r = shell(R"(
common='--nnodes 1:2 train.steps=1000000 checkpoint.every=0 launch.elastic_wait=0'
machine a 0 $common
until_steps 10
machine b 1 $common
until_text b 'checkpoint.every = 0'
until_steps 100
kill -TERM $b
ended b
until_steps 10
kill -TERM $a
ended a)");
  // A signal to a machine that only waits does not concern the others.
  EXPECT_THAT(r.out, AllOf(HasSubstr("b: 143\n"), HasSubstr("a: 143\n"))) << output("a");
  EXPECT_THAT(output("b"),
              HasSubstr("the run continues without this machine until its next restart"));
  EXPECT_THAT(output("a"), Not(HasSubstr("2 machines")));
}

TEST_F(Elastic, ASignalToALauncherOrARankStopsAllMachines) {
  for (const std::string how : {"kill -TERM $a",
                                "kill -TERM $b",
                                "kill -INT $a",
                                "kill -TERM $(pgrep -P $a yoke-worker)",
                                "kill -USR1 $(pgrep -P $b yoke-worker)"}) {
    const auto r = shell(R"(rm -rf runs
common='--nnodes 1:2 --restarts 3 train.steps=1000000 checkpoint.every=1000000'
machine a 0 $common; machine b 1 $common
until_steps 10
)" + how + "; ended a; ended b");
    const std::string code = how == "kill -INT $a" ? "130" : "75";
    EXPECT_THAT(r.out, AllOf(HasSubstr("a: " + code + "\n"), HasSubstr("b: " + code + "\n")))
        << how << r.out << output("a") << output("b");
    for (const char* name : {"a", "b"}) EXPECT_THAT(output(name), Not(HasSubstr("again"))) << how;
  }
}

TEST_F(Elastic, ASignalBetweenAttemptsStopsAllMachines) {
  for (const std::string name : {"a", "b"}) {
    const auto r = shell(R"(
common='--nnodes 3:3'
machine a 0 $common; machine b 1 $common
until_text a '2 of 3 is missing'
kill -INT $)" + name + "; ended a; ended b");
    EXPECT_THAT(r.out, AllOf(HasSubstr("a: 130\n"), HasSubstr("b: 130\n"))) << output("a");
    EXPECT_THAT(output(name == "a" ? "b" : "a"),
                HasSubstr("stopped by its user between two attempts"));
  }
}

TEST_F(Elastic, EndsIfTooFewMachinesCome) {
  const auto r = shell(R"(
machine a 0 --nnodes 2:3 launch.join_timeout=6; ended a
machine b 1 --nnodes 2:3 launch.join_timeout=2; ended b)");
  EXPECT_THAT(r.out, AllOf(HasSubstr("a: 5\n"), HasSubstr("b: 5\n")));
  EXPECT_THAT(output("a"),
              AllOf(HasSubstr("machines 1, 2 of 3 are missing; present: 0 ("),
                    HasSubstr("--nnodes 2:3 needs at least 2; gave up after 6 s")));
  EXPECT_THAT(output("b"),
              AllOf(HasSubstr("machine 0 cannot be reached at 127.0.0.1:"),
                    HasSubstr("gave up after 2 s (launch.join_timeout)")));
}

TEST_F(Elastic, AMachineThatCannotTakePartTellsTheOthers) {
  const auto r = shell(R"(
machine a 0 --nnodes 2:2; machine b 1 --nnodes 2:2 train.setps=3
ended a; ended b; cp a aa
machine a 0 --nnodes 2:2 train.setps=3; machine b 1 --nnodes 2:2
ended a; ended b; cp b bb
machine a 0 --nnodes 1:2; machine b 1 --nnodes 1:2 seed=2
ended b; ended a)");
  EXPECT_EQ(r.out, "a: 2\nb: 2\na: 2\nb: 2\nb: 2\na: 0\n") << output("a") << output("b");
  EXPECT_THAT(output("aa"),
              AllOf(HasSubstr("machine 1 ("), HasSubstr("cannot take part"), HasSubstr("setps")));
  EXPECT_THAT(output("bb"),
              AllOf(HasSubstr("machine 0 ("), HasSubstr("cannot take part"), HasSubstr("setps")));
  EXPECT_THAT(
      output("b"),
      AllOf(HasSubstr("the machines do not run the same job"), HasSubstr("seed: machine 0")));
}

TEST_F(Elastic, ADegreeThatFitsNoLongerEndsTheRunWithoutALoss) {
  const auto r = shell(R"(
common='--nnodes 1:3 --restarts 3 train.steps=1000000 train.global_batch=6 checkpoint.every=10
  dp_degree=3 launch.elastic_wait=1'
machine a 0 $common; machine b 1 $common; machine c 2 $common
until_steps 30
kill -KILL $c
ended a; ended b; ls runs/r/checkpoints)");
  EXPECT_THAT(r.out, AllOf(HasSubstr("a: 2\n"), HasSubstr("b: 2\n"), HasSubstr("step-0000")));
  for (const char* name : {"a", "b"}) {
    EXPECT_THAT(output(name),
                AllOf(HasSubstr("with 2 machines (--nnodes 1:3), the product of the degrees "
                                "(dp_degree 3) is 3 and does not divide 2 ranks"),
                      HasSubstr("start a multiple of 3 ranks, or change a degree")));
  }
}

// The batch that the file means depends on the number of ranks, and a run must not change it.
TEST_F(Elastic, AConfigThatMeansAnotherRunOnFewerMachinesEndsIt) {
  here_.folder().write(
      "ds.json", R"({"train_micro_batch_size_per_gpu": 2, "gradient_accumulation_steps": 1})");
  std::string text = read_file(here_.folder() / "run.toml");
  const std::string batch = "train.global_batch = 4\n";
  text.erase(text.find(batch), batch.size());
  here_.folder().write("run.toml", text);
  const auto r = shell(R"(
common='--nnodes 1:2 --restarts 3 train.steps=3000 checkpoint.every=20 launch.elastic_wait=0
parallel_backend=deepspeed_stub deepspeed_stub.config_file=ds.json'
machine a 0 $common; machine b 1 $common
until_steps 30
kill -KILL $b
ended a)");
  const std::string log = output("a");
  EXPECT_THAT(log.substr(log.size() - std::min<size_t>(log.size(), 1000)),
              HasSubstr("the run cannot be started again: runs/r was made with another "
                        "configuration (train.global_batch = 2 (4 before))"));
  EXPECT_THAT(r.out, HasSubstr("a: 2\n"));
}

TEST_F(Elastic, OnlyMachinesWithTheSecretTakePart) {
  const auto r = shell(R"(
umask 077; head -c 32 /dev/urandom | base64 >right; head -c 32 /dev/urandom | base64 >wrong
common='--nnodes 1:2 launch.elastic_wait=5'
YOKE_SECRET_FILE=right machine a 0 $common; YOKE_SECRET_FILE=wrong machine b 1 $common
ended b; machine c 1 $common; ended c; ended a
YOKE_SECRET_FILE=right machine d 0 $common; YOKE_SECRET_FILE=right machine e 1 $common
ended d; ended e)");
  EXPECT_EQ(r.out, "b: 2\nc: 2\na: 0\nd: 0\ne: 0\n") << output("a") << output("d") << output("e");
  EXPECT_THAT(output("b"), HasSubstr("machine 0 at 127.0.0.1:"));
  EXPECT_THAT(output("b"), HasSubstr("has another secret than this machine"));
  EXPECT_THAT(output("c"), HasSubstr("requires the secret of the run"));
  EXPECT_THAT(output("d"), HasSubstr("2 machines"));
}

TEST_F(Elastic, FlagsThatMakeNoSenseAreRefused) {
  const std::string counts = "not a least and a largest number of machines";
  const std::pair<std::string, std::string> cases[] = {
      {"--nnodes 2:1 --node-rank 0 --nproc 1 --master a:1", counts},
      {"--nnodes 0:2 --node-rank 0 --nproc 1 --master a:1", counts},
      {"--nnodes 1: --node-rank 0 --nproc 1 --master a:1", counts},
      {"--nnodes :2 --node-rank 0 --nproc 1 --master a:1", counts},
      {"--nnodes a:b --node-rank 0 --nproc 1 --master a:1", counts},
      {"--nnodes 1:2:3 --node-rank 0 --nproc 1 --master a:1", counts},
      {"--nnodes -1:2 --node-rank 0 --nproc 1 --master a:1", counts},
      {"--nnodes 1:2 --nproc 1 --master a:1", "--nnodes 1:2 needs --node-rank"},
      {"--nnodes 1:2 --node-rank 2 --nproc 1 --master a:1", "allowed: 0 to 1"},
      {"--nnodes 1:2 --node-rank 0 --master a:1", "needs --nproc"},
      {"--nnodes 1:2 --node-rank 0 --virtual 2 --master a:1", "needs --nproc"},
      {"--nnodes 1:2 --node-rank 0 --nproc 1", "needs --master HOST:PORT"},
      {"--nnodes 1:2 --node-rank 0 --nproc 1 --master a:65535", "(1 to 65534); given: 'a:65535'"},
  };
  for (const auto& [flags, text] : cases) {
    const auto r = shell("$yoke train run.toml " + flags);
    EXPECT_EQ(r.ending.exit_code, 2) << flags;
    EXPECT_THAT(r.err, HasSubstr(text)) << flags;
  }
  const FileDescriptor taken = take_port(0);
  const auto r =
      shell(concat("$yoke train run.toml --nnodes 1:2 --node-rank 0 --nproc 1 --master "
                   "127.0.0.1:",
                   port_of(taken) - 1));
  EXPECT_EQ(r.ending.exit_code, 2);
  EXPECT_THAT(r.err, AllOf(HasSubstr("the port after that of --master"), HasSubstr("in use")));
}

}  // namespace
}  // namespace yoke::testing
