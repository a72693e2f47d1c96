// Starts the real program under other launchers or with their environment variables. Tests the
// rendezvous over TCP, and errors.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include "tests/cli/metrics_rows.hpp"
#include "tests/cli/playground.hpp"
#include "tests/cli/processes.hpp"

namespace yoke::testing {
namespace {

using ::testing::AllOf;
using ::testing::AnyOf;
using ::testing::HasSubstr;
using ::testing::Not;
using Variables = std::vector<std::string>;

Variables rendezvous_at(const std::string& host, int port) {
  return {"MASTER_ADDR=" + host, "MASTER_PORT=" + std::to_string(port)};
}

// The variables that Open MPI's mpirun sets; local = number of ranks on this machine.
Variables mpirun(int rank, int world, int local) {
  return {"OMPI_COMM_WORLD_RANK=" + std::to_string(rank),
          "OMPI_COMM_WORLD_SIZE=" + std::to_string(world),
          "OMPI_COMM_WORLD_LOCAL_RANK=" + std::to_string(rank % local),
          "OMPI_COMM_WORLD_LOCAL_SIZE=" + std::to_string(local)};
}

Variables operator+(Variables a, const Variables& b) {
  a.insert(a.end(), b.begin(), b.end());
  return a;
}

// Starts `yoke train run.toml args` once per set of variables, all at the same time.
std::vector<Ended> start(const Playground& here,
                         const std::vector<Variables>& processes,
                         const std::string& args) {
  std::vector<std::string> commands;
  for (const Variables& variables : processes) {
    std::string command = "env OMP_NUM_THREADS=1";
    for (const std::string& variable : variables) command += " '" + variable + "'";
    commands.push_back(command + " timeout 500 " + Playground::program() + " train run.toml " +
                       args);
  }
  return run_together(here.folder(), commands);
}

std::vector<double> losses(const Playground& here, const std::string& run) {
  return logged_losses(here.folder() / run);
}

class Launched : public ::testing::Test {
 protected:
  // Returns the losses of a run whose two ranks `yoke` starts itself: the expected values.
  std::vector<double> own_start() {
    EXPECT_TRUE(here_.yoke({"train", "run.toml", "run.dir=runs/own", "--nproc", "2"}).ending.ok());
    return losses(here_, "runs/own");
  }
  Playground here_;
};

TEST_F(Launched, ByMpirunTrainsAsIfStartedHere) {
  const Variables place = rendezvous_at("127.0.0.1", free_port());
  const auto ended = start(here_, {mpirun(0, 2, 2) + place, mpirun(1, 2, 2) + place}, "");
  ASSERT_EQ(ended[0].exit_code, 0) << ended[0].text();
  EXPECT_EQ(ended[1].exit_code, 0) << ended[1].text();
  EXPECT_EQ(losses(here_, "runs/r"), own_start());
  EXPECT_THAT(ended[0].text(), HasSubstr("threads    1 per rank ("));
  EXPECT_THAT(ended[0].text(), HasSubstr("2 local ranks)"));
  EXPECT_EQ(ended[1].text(), "");
}

TEST_F(Launched, BySrunNeedsNoRendezvous) {
  const auto task = [](int rank) {
    return Variables{"SLURM_PROCID=" + std::to_string(rank),
                     "SLURM_LOCALID=" + std::to_string(rank),
                     "SLURM_STEP_NUM_TASKS=2",
                     "SLURM_STEP_TASKS_PER_NODE=2",
                     "SLURM_STEP_ID=0",
                     "SLURM_JOB_ID=" + std::to_string(::getpid())};
  };
  const auto ended = start(here_, {task(0), task(1)}, "train.steps=1 checkpoint.every=0");
  EXPECT_EQ(ended[0].exit_code, 0) << ended[0].text();
  EXPECT_EQ(ended[1].exit_code, 0) << ended[1].text();
}

TEST_F(Launched, ByTorchrunItself) {
  const char* deps = std::getenv("YOKE_DEPS");
  const std::string home = std::getenv("HOME") == nullptr ? "" : std::getenv("HOME");
  const std::string torchrun =
      (deps != nullptr ? deps : home + "/.cache/yoke") + std::string("/venv/bin/torchrun");
  if (::access(torchrun.c_str(), X_OK) != 0)
    GTEST_SKIP() << "no " << torchrun << "; scripts/setup --peers installs it";
  // After `scripts/setup` without --peers, torchrun exists but cannot import torch.
  const SubprocessResult r = run_subprocess({"/usr/bin/env",
                                             "-C",
                                             here_.folder().path().string(),
                                             torchrun,
                                             "--no-python",
                                             "--standalone",
                                             "--nproc-per-node",
                                             "2",
                                             Playground::program(),
                                             "train",
                                             "run.toml"});
  if (r.err.find("ModuleNotFoundError") != std::string::npos ||
      r.err.find("ImportError") != std::string::npos)
    GTEST_SKIP() << "torchrun does not start here; scripts/setup --peers installs what it needs";
  ASSERT_EQ(r.ending.exit_code, 0) << r.err;
  EXPECT_EQ(losses(here_, "runs/r"), own_start());
}

// Runs the real launchers, if they are installed.
class LaunchedByItself : public Launched, public ::testing::WithParamInterface<const char*> {};

TEST_P(LaunchedByItself, TrainsAsIfStartedHere) {
  const std::string launcher = GetParam();
  const std::string program = launcher.substr(0, launcher.find(' '));
  if (!run_subprocess({"/bin/sh", "-c", "command -v " + program}).ending.ok())
    GTEST_SKIP() << "no " << program << "; scripts/setup --peers installs it";
  std::string script = "cd " + here_.folder().path().string();
  for (const std::string& variable : rendezvous_at("127.0.0.1", free_port()))
    script += "; export " + variable;
  script += "; " + launcher + " " + Playground::program() + " train run.toml";
  const SubprocessResult r = run_subprocess({"/bin/sh", "-c", script});
  ASSERT_EQ(r.ending.exit_code, 0) << r.out << r.err;
  EXPECT_EQ(losses(here_, "runs/r"), own_start());
}

INSTANTIATE_TEST_SUITE_P(
    Launched,
    LaunchedByItself,
    ::testing::Values("mpirun.openmpi --allow-run-as-root --oversubscribe -n 2",
                      "mpiexec.hydra -n 2"));

// launch.join_timeout must exceed the largest difference between the ranks' start times on a busy
// machine.
TEST_F(Launched, WithARankMissingReportsWhichRanksArePresentAndEnds) {
  const Variables place = rendezvous_at("127.0.0.1", free_port());
  const auto ended = start(here_,
                           {mpirun(0, 3, 3) + place, mpirun(2, 3, 3) + place},
                           "launch.join_timeout=20 train.global_batch=6");
  for (const Ended& e : ended) {
    EXPECT_EQ(e.exit_code, 5) << e.text();
    EXPECT_THAT(e.text(), Not(HasSubstr("Exception raised")));
  }
  const auto gave_up =
      AllOf(HasSubstr("rank 1 of 3 is missing; present: 0 ("), HasSubstr("gave up after 20 s"));
  EXPECT_THAT(ended[0].text(), gave_up);
  EXPECT_THAT(ended[1].text(), AnyOf(gave_up, HasSubstr("lost rank 0")));
  EXPECT_THAT(ended[0].text(), HasSubstr("waiting for the other ranks: rank 1 of 3 is missing"));
  EXPECT_THAT(ended[1].text(), Not(HasSubstr("waiting for"))) << "one rank reports";
}

TEST_F(Launched, TwiceWithOneNumberIsRefused) {
  const Variables place = rendezvous_at("127.0.0.1", free_port());
  const auto ended =
      start(here_,
            {mpirun(0, 3, 3) + place, mpirun(1, 3, 3) + place, mpirun(1, 3, 3) + place},
            "launch.join_timeout=20 train.global_batch=6");
  const Ended& second = ended[1].exit_code == 2 ? ended[1] : ended[2];
  EXPECT_EQ(second.exit_code, 2) << second.text();
  EXPECT_THAT(second.text(), HasSubstr("rank 1 is taken by"));
}

TEST_F(Launched, AtAPortInUseIsRefused) {
  const FileDescriptor taken = take_port(0);
  const int port = port_of(taken);
  const auto ended = start(here_, {mpirun(0, 2, 2) + rendezvous_at("127.0.0.1", port)}, "");
  EXPECT_EQ(ended[0].exit_code, 2);
  EXPECT_THAT(ended[0].text(),
              AllOf(HasSubstr("MASTER_PORT = " + std::to_string(port)), HasSubstr("in use")));
}

TEST_F(Launched, AtAWrongAddressEndsInTime) {
  const auto nobody = start(
      here_, {mpirun(1, 2, 1) + rendezvous_at("127.0.0.1", free_port())}, "launch.join_timeout=1");
  EXPECT_EQ(nobody[0].exit_code, 5);
  EXPECT_THAT(nobody[0].text(),
              AllOf(HasSubstr("rank 0 cannot be reached at 127.0.0.1:"),
                    HasSubstr("Connection refused"),
                    HasSubstr("gave up after 1 s")));
  for (const int rank : {0, 1}) {
    const auto nowhere = start(here_,
                               {mpirun(rank, 2, 1) + rendezvous_at("no-such-host.invalid", 29500)},
                               "launch.join_timeout=1");
    EXPECT_EQ(nowhere[0].exit_code, 2);
    EXPECT_THAT(nowhere[0].text(),
                HasSubstr("MASTER_ADDR = 'no-such-host.invalid' has no address"));
  }
}

TEST_F(Launched, OverAnInterfaceThatIsNotThereIsRefused) {
  const auto ended = start(here_,
                           {mpirun(0, 2, 1) + rendezvous_at("127.0.0.1", free_port()) +
                            Variables{"GLOO_SOCKET_IFNAME=wire9"}},
                           "");
  EXPECT_EQ(ended[0].exit_code, 2);
  EXPECT_THAT(ended[0].text(), HasSubstr("GLOO_SOCKET_IFNAME = 'wire9'"));
}

}  // namespace
}  // namespace yoke::testing
