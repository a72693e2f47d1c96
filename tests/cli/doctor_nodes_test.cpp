// Tests `yoke doctor --nodes` with the real program, as several ranks on this machine. What it
// concludes from machines that differ is tested in tests/unit/launch/compare_machines_test.cpp.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <map>
#include <nlohmann/json.hpp>
#include <sstream>

#include "tests/cli/playground.hpp"
#include "tests/cli/processes.hpp"

namespace yoke::testing {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using Words = std::vector<std::string>;

// One process: its rank, more variables, and the options of the doctor.
struct Process {
  int rank = 0;
  Words variables = {};
  Words options = {};
};

class DoctorNodes : public ::testing::Test {
 protected:
  // Runs the processes at the same time, as ranks of a world of this size.
  std::vector<Ended> run(int world, const std::vector<Process>& processes) const {
    Words commands;
    for (const Process& process : processes) {
      std::ostringstream command;
      command << "env -u YOKE_SECRET_FILE OMP_NUM_THREADS=1 RANK=" << process.rank
              << " WORLD_SIZE=" << world << " LOCAL_RANK=" << process.rank
              << " LOCAL_WORLD_SIZE=" << world << " MASTER_ADDR=127.0.0.1 MASTER_PORT=" << port_;
      for (const std::string& variable : process.variables) command << " '" << variable << "'";
      command << " timeout 500 " << Playground::program() << " doctor --nodes";
      if (process.options.empty() || process.options[0] != "--timeout") command << " --timeout 100";
      for (const std::string& option : process.options) command << " '" << option << "'";
      commands.push_back(command.str());
    }
    return run_together(here_.folder(), commands);
  }
  std::string make_secret(const std::string& name, const std::string& text) const {
    const std::string path = here_.folder().write(name, text);
    std::filesystem::permissions(path, static_cast<std::filesystem::perms>(0600));
    return "YOKE_SECRET_FILE=" + path;
  }
  std::string make_folder(const std::string& name) const {
    std::filesystem::create_directories(here_.folder() / name);
    return here_.folder() / name;
  }

  Playground here_;
  int port_ = free_port();
};

TEST_F(DoctorNodes, WithoutALauncherSaysHowToStart) {
  const SubprocessResult r = here_.yoke({"doctor", "--nodes"});
  EXPECT_EQ(r.ending.exit_code, 2);
  EXPECT_THAT(r.err,
              AllOf(HasSubstr("none started this process"),
                    HasSubstr("srun yoke doctor --nodes"),
                    HasSubstr("torchrun --no-python"),
                    HasSubstr("mpirun -n 2")));
}

TEST_F(DoctorNodes, RefusesWrongOptions) {
  for (const Words& words : {Words{"doctor", "--nodes", "--timeout", "0"},
                             Words{"doctor", "--nodes", "runs/r"},
                             Words{"doctor", "--run-dir", "runs"}})
    EXPECT_EQ(here_.yoke(words).ending.exit_code, 2);
}

TEST_F(DoctorNodes, OfOneRankFindsNoProblem) {
  const auto ended = run(1, {{0, {}, {"--json"}}});
  ASSERT_EQ(ended[0].exit_code, 0) << ended[0].out << ended[0].err;
  std::map<std::string, std::string> found;
  for (const auto& row : nlohmann::json::parse(ended[0].out)) found[row.at("what")] = row["found"];
  EXPECT_THAT(found["ranks"], HasSubstr("1 rank on 1 machine"));
  EXPECT_THAT(found["programs"], HasSubstr("yoke-worker"));
}

TEST_F(DoctorNodes, OfSeveralRanksFindsNoProblemAndPrintsOneTable) {
  const std::string folder = make_folder("shared");
  for (const int world : {2, 3}) {
    std::vector<Process> processes;
    for (int r = 0; r < world; ++r) processes.push_back({r, {}, {"--run-dir", folder}});
    const auto ended = run(world, processes);
    EXPECT_EQ(ended[0].exit_code, 0) << ended[0].out << ended[0].err;
    EXPECT_THAT(ended[0].out, HasSubstr(std::to_string(world) + " ranks on 1 machine"));
    EXPECT_THAT(ended[0].out, HasSubstr("all ranks see it and may write to it"));
    for (int r = 1; r < world; ++r) {
      EXPECT_EQ(ended[r].exit_code, 0) << ended[r].err;
      EXPECT_EQ(ended[r].out, "");
    }
    EXPECT_TRUE(std::filesystem::is_empty(folder));
  }
}

TEST_F(DoctorNodes, NamesARankThatIsMissing) {
  const Words soon{"--timeout", "10"};
  const auto ended = run(3, {{0, {}, soon}, {2, {}, soon}});
  EXPECT_EQ(ended[0].exit_code, 1);
  EXPECT_EQ(ended[1].exit_code, 1);
  EXPECT_THAT(ended[0].out, HasSubstr("problem  ranks               rank 1 of 3 is missing"));
  EXPECT_THAT(ended[0].out, HasSubstr("gave up after 10 s (--timeout)"));
}

// With rank 2 missing, the ranks are still gathering when the third process arrives, however late.
TEST_F(DoctorNodes, NamesARankThatWasStartedTwice) {
  const auto ended = run(3, {{0}, {1}, {1}});
  for (const Ended& e : ended) {
    EXPECT_EQ(e.exit_code, 1);
    EXPECT_THAT(e.out + e.err, HasSubstr("rank 1 is taken by"));
  }
  EXPECT_THAT(ended[0].out, HasSubstr("problem  ranks"));
}

TEST_F(DoctorNodes, NamesARankWithAnotherSecretOrNone) {
  const std::string one = make_secret("one", "a secret of twenty bytes");
  const std::string two = make_secret("two", "another of twenty bytes");
  const auto good = run(2, {{0, {one}}, {1, {one}}});
  EXPECT_EQ(good[0].exit_code, 0) << good[0].out;
  EXPECT_THAT(good[0].out, HasSubstr("all ranks know the same one"));
  const auto other = run(3, {{0, {one}}, {1, {two}}, {2, {one}}});
  EXPECT_THAT(other[0].out,
              AllOf(HasSubstr("secret 1 on ranks 0, 2"), HasSubstr("secret 2 on rank 1")));
  const auto none = run(2, {{0, {one}}, {1}});
  EXPECT_THAT(none[0].out, HasSubstr("YOKE_SECRET_FILE is not set on rank 1"));
  const auto open = run(2, {{0, {one}}, {1, {"YOKE_SECRET_FILE=/etc/hostname"}}});
  EXPECT_THAT(open[0].out, HasSubstr("other users may use the file"));
  for (const auto& ended : {other, none, open}) {
    for (const Ended& e : ended) EXPECT_EQ(e.exit_code, 1) << e.out;
  }
}

TEST_F(DoctorNodes, NamesARankWithoutTheRunFolder) {
  const auto with = [&](const std::string& first, const std::string& second) {
    const auto ended = run(2, {{0, {}, {"--run-dir", first}}, {1, {}, {"--run-dir", second}}});
    EXPECT_EQ(ended[0].exit_code, 1) << ended[0].out;
    EXPECT_EQ(ended[1].exit_code, 1) << ended[1].err;
    return ended[0].out;
  };
  EXPECT_THAT(with("absent", "absent"), HasSubstr("no such folder on all ranks"));
  EXPECT_THAT(with(make_folder("a"), make_folder("b")),
              HasSubstr("does not show the files of rank 0: another folder on rank 1"));
  EXPECT_THAT(with(make_folder("a"), "/sys/kernel"), HasSubstr("on rank 1"));
  EXPECT_THAT(with("/sys/kernel", "/sys/kernel"), HasSubstr("not writable ("));
}

TEST_F(DoctorNodes, NamesAPortThatIsTaken) {
  const FileDescriptor taken = take_port(port_);
  const auto ended = run(2, {{0}});
  EXPECT_EQ(ended[0].exit_code, 1);
  EXPECT_THAT(ended[0].out,
              AllOf(HasSubstr("problem  rendezvous address"),
                    HasSubstr("port " + std::to_string(port_) + ": Address already in use"),
                    HasSubstr("export MASTER_PORT=")));
}

TEST_F(DoctorNodes, LeavesMasterPortToTorchrun) {
  const FileDescriptor agent = take_port(port_);
  const Words torchrun{"TORCHELASTIC_RUN_ID=r", "TORCHELASTIC_USE_AGENT_STORE=True"};
  const auto ended = run(2, {{0, torchrun}, {1, torchrun}});
  EXPECT_EQ(ended[0].exit_code, 0) << ended[0].out;
  EXPECT_EQ(ended[1].exit_code, 0) << ended[1].err;
  EXPECT_THAT(ended[0].out, HasSubstr("port " + std::to_string(port_ + 1)));
}

TEST_F(DoctorNodes, NamesARankThatCannotReachRank0) {
  const auto nobody = run(2, {{1, {"LOCAL_WORLD_SIZE=1", "LOCAL_RANK=0"}, {"--timeout", "2"}}});
  EXPECT_EQ(nobody[0].exit_code, 1);
  EXPECT_THAT(nobody[0].err,
              AllOf(HasSubstr("cannot reach rank 0"), HasSubstr("this machine itself")));
  const auto nowhere = run(2, {{1, {"MASTER_ADDR=no-such-host.invalid"}, {"--timeout", "2"}}});
  EXPECT_EQ(nowhere[0].exit_code, 1);
  EXPECT_THAT(nowhere[0].err, HasSubstr("finds no address of MASTER_ADDR = no-such-host.invalid"));
}

}  // namespace
}  // namespace yoke::testing
