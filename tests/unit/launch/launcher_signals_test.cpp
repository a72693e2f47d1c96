// Tests how a launch is ended from outside: by signals to the launcher, even while the reader of
// the output stalls. No rank may be left running.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <chrono>
#include <csignal>
#include <filesystem>
#include <fstream>
#include <string>
#include <thread>

#include "tests/support/temp_folder.hpp"
#include "tests/unit/launch/launcher_process.hpp"

namespace yoke {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::Not;
using testing::read_file;
using testing::TempFolder;

void wait_for(const std::string& file) {
  while (!std::filesystem::exists(file)) std::this_thread::sleep_for(std::chrono::milliseconds(5));
}

bool alive(pid_t pid) {
  std::ifstream stat("/proc/" + std::to_string(pid) + "/stat");
  std::string number, name, state;
  if (!(stat >> number >> name >> state)) return false;
  return state != "Z" && state != "X";
}

// A killed process may exist for a moment longer.
bool is_gone(pid_t pid) {
  for (int i = 0; i < 24000 && alive(pid); ++i)  // two minutes
    std::this_thread::sleep_for(std::chrono::milliseconds(5));
  return !alive(pid);
}

pid_t pid_in(const std::string& file) {
  return std::stoi(read_file(file));
}

// ---- Signals ----

TEST(Launcher, ForwardsAnInterruptAndReturns130) {
  const TempFolder folder;
  const std::string polite = "trap 'echo saved; exit 130' INT; : > $RANK_FOLDER/";
  LauncherProcess launcher({script(polite + "0; while :; do sleep 0.01; done", folder),
                            script(polite + "1; while :; do sleep 0.01; done", folder)});
  wait_for(folder / "0");
  wait_for(folder / "1");
  launcher.send(SIGINT);
  EXPECT_EQ(launcher.wait(), 130);
  EXPECT_THAT(launcher.out, AllOf(HasSubstr("saved\n"), HasSubstr("[rank 1] saved\n")));
  EXPECT_THAT(launcher.err, HasSubstr("stopping after this step"));
}

// `nohup` starts a program that ignores SIGHUP.
TEST(Launcher, EndsAtAHangUpUnlessItIsIgnored) {
  for (const bool ignored : {true, false}) {
    const TempFolder folder;
    const auto before = ::signal(SIGHUP, ignored ? SIG_IGN : SIG_DFL);
    LauncherProcess launcher({script(notify("ready") + await("end"), folder)});
    ::signal(SIGHUP, before);
    wait_for(folder / "ready");
    launcher.send(SIGHUP);
    if (ignored) std::ofstream(folder / "end");
    EXPECT_EQ(launcher.wait(), ignored ? 0 : 143) << launcher.err;
  }
}

// An order to stop, which a test gives by writing to a pipe.
struct Order {
  void give() { EXPECT_EQ(::write(pipe.write_end.get(), "x", 1), 1); }
  StopOrder stop() const {
    return {pipe.read_end.get(), [] { return "a machine has come"; }};
  }
  Pipe pipe = make_pipe();
};

TEST(Launcher, StopsTheRanksWhenItIsOrderedTo) {
  const TempFolder folder;
  Order order;
  const std::string polite =
      "trap 'exit 75' USR1; : > $RANK_FOLDER/0; while :; do sleep 0.01; done";
  LauncherProcess launcher({script(polite, folder)}, order.stop());
  wait_for(folder / "0");
  order.give();
  EXPECT_EQ(launcher.wait(), 75);
  EXPECT_THAT(launcher.err,
              AllOf(HasSubstr("yoke: a machine has come\n"), Not(HasSubstr("failed"))));
}

// A rank that is still starting is killed by the signal, and its peers lose it.
TEST(Launcher, TakesAnOrderDuringTheStartOfARankAsOrderly) {
  const TempFolder folder;
  Order order;
  LauncherProcess launcher(
      {script(": > $RANK_FOLDER/0; exec sleep 300", folder),
       script("trap 'exit 5' USR1; : > $RANK_FOLDER/1; while :; do sleep 0.01; done", folder)},
      order.stop());
  wait_for(folder / "0");
  wait_for(folder / "1");
  order.give();
  EXPECT_EQ(launcher.wait(), 143);
  EXPECT_THAT(launcher.err, Not(HasSubstr("rank 0 of 2")));
}

// A second signal to a rank would keep it from saving.
TEST(Launcher, DoesNotDisturbRanksThatAreStoppingAlready) {
  const TempFolder folder;
  Order order;
  LauncherProcess launcher(
      {script("trap 'exit 1' TERM INT; trap ': > $RANK_FOLDER/saving; sleep 1; exit 75' USR1; "
              ": > $RANK_FOLDER/0; while :; do sleep 0.01; done",
              folder)},
      order.stop());
  wait_for(folder / "0");
  order.give();
  wait_for(folder / "saving");
  launcher.send(SIGINT);
  EXPECT_EQ(launcher.wait(), 130);
}

TEST(Launcher, ForwardsATerminationAndReturns143) {
  const TempFolder folder;
  LauncherProcess launcher(
      {script("trap 'exit 0' TERM; : > $RANK_FOLDER/0; while :; do sleep 0.01; done", folder)});
  wait_for(folder / "0");
  launcher.send(SIGTERM);
  EXPECT_EQ(launcher.wait(), 143);
}

TEST(Launcher, TakesAnInterruptDuringTheStartOfARankAsOrderly) {
  const TempFolder folder;
  LauncherProcess launcher({script(": > $RANK_FOLDER/0; exec sleep 300", folder)});
  wait_for(folder / "0");
  launcher.send(SIGINT);
  EXPECT_EQ(launcher.wait(), 130);
  EXPECT_THAT(launcher.err, Not(HasSubstr("killed")));
}

// A rank that notes an interrupt and continues.
std::vector<RankCommand> stubborn_rank(const TempFolder& folder) {
  return {script(
      "trap ': > $RANK_FOLDER/notified' INT; : > $RANK_FOLDER/0; while :; do sleep 0.01; done",
      folder)};
}

TEST(Launcher, KillsTheRanksAtTheSecondSignal) {
  for (const bool same : {true, false}) {
    const TempFolder folder;
    LauncherProcess launcher(stubborn_rank(folder));
    wait_for(folder / "0");
    launcher.send(SIGINT);
    wait_for(folder / "notified");
    // A repeated signal is ignored for two seconds.
    if (same) std::this_thread::sleep_for(std::chrono::milliseconds(2200));
    launcher.send(same ? SIGINT : SIGTERM);
    EXPECT_EQ(launcher.wait(), 130);
  }
}

TEST(Launcher, CountsTheSameSignalInARowOnce) {
  const TempFolder folder;
  LauncherProcess launcher({script(
      "trap ': > $RANK_FOLDER/notified; sleep 0.3; echo saved; exit 130' INT; : > $RANK_FOLDER/0; "
      "while :; do sleep 0.01; done",
      folder)});
  wait_for(folder / "0");
  launcher.send(SIGINT);
  // Two pending signals of one kind would be one, so the second waits until the first has arrived.
  wait_for(folder / "notified");
  launcher.send(SIGINT);
  EXPECT_EQ(launcher.wait(), 130);
  EXPECT_THAT(launcher.out, HasSubstr("saved\n"));
}

TEST(Launcher, ReportsARankThatFailsWhileItStops) {
  const TempFolder folder;
  LauncherProcess launcher(
      {script("trap 'echo disk full; exit 1' INT; : > $RANK_FOLDER/0; while :; do sleep 0.01; done",
              folder)});
  wait_for(folder / "0");
  launcher.send(SIGINT);
  EXPECT_EQ(launcher.wait(), 1);
  EXPECT_THAT(launcher.err, HasSubstr("failed with exit code 1"));
}

// ---- Orphans ----

TEST(Launcher, LeavesNoChildOfARankBehind) {
  const TempFolder folder;
  const std::string child = "sleep 300 & ";
  LauncherProcess launcher(
      {script(child + notify("0", "$!") + "exit 0", folder),
       script(child + notify("1", "$!") + await("0") + await("2") + "exit 1", folder),
       script(child + notify("2", "$!") + "wait", folder)});
  launcher.wait();
  for (const char* name : {"0", "1", "2"}) EXPECT_TRUE(is_gone(pid_in(folder / name))) << name;
}

TEST(Launcher, TakesItsRanksAlongWhenItIsKilled) {
  const TempFolder folder;
  LauncherProcess launcher({script(notify("pid", "$$") + "exec sleep 300", folder)});
  wait_for(folder / "pid");
  launcher.send(SIGKILL);
  EXPECT_EQ(launcher.wait(), -SIGKILL);
  EXPECT_TRUE(is_gone(pid_in(folder / "pid")));
}

// ---- A reader that stalls ----

TEST(LaunchRanks, ObeySignalsThoughNobodyReadsTheOutput) {
  const TempFolder folder;
  LauncherProcess launcher({script(notify("started") + "yes 'a line that nobody reads'", folder)});
  wait_for(folder / "started");
  std::this_thread::sleep_for(std::chrono::milliseconds(200));  // the pipes are full by then
  launcher.send(SIGTERM);
  ASSERT_TRUE(launcher.ends_unread());
}

TEST(LaunchRanks, LoseNoLineWhenTheReaderIsSlow) {
  const TempFolder folder;
  LauncherProcess launcher({script("seq 1 400000; " + notify("done"), folder)});
  std::this_thread::sleep_for(std::chrono::milliseconds(300));
  EXPECT_FALSE(std::filesystem::exists(folder / "done")) << "the rank waits for the reader";
  EXPECT_EQ(launcher.wait(), 0);
  EXPECT_THAT(launcher.out, ::testing::EndsWith("399999\n400000\n"));
  EXPECT_EQ(std::count(launcher.out.begin(), launcher.out.end(), '\n'), 400000);
}

}  // namespace
}  // namespace yoke
