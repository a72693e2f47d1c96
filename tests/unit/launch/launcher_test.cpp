#include "core/launch/launcher.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <poll.h>
#include <sys/wait.h>

#include <algorithm>
#include <chrono>
#include <csignal>
#include <sstream>
#include <thread>

#include "core/base/subprocess.hpp"
#include "tests/support/temp_folder.hpp"

namespace yoke {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::Not;
using testing::read_file;
using testing::TempFolder;

// Returns a rank that runs a shell script; $RANK_FOLDER is a folder of the test.
RankCommand script(const std::string& text, const TempFolder& folder) {
  return {{"/bin/sh", "-c", text}, {{"RANK_FOLDER", folder.path().string()}}};
}

// Runs launch_ranks() in a process of its own, so that a test can send it signals and read its
// output.
class LauncherProcess {
 public:
  explicit LauncherProcess(const std::vector<RankCommand>& commands)
      : out_(make_pipe()), err_(make_pipe()) {
    pid_ = ::fork();
    if (pid_ == 0) {
      ::dup2(out_.write_end.get(), STDOUT_FILENO);
      ::dup2(err_.write_end.get(), STDERR_FILENO);
      ::_exit(launch_ranks(commands));
    }
    out_.write_end.reset();
    err_.write_end.reset();
  }
  ~LauncherProcess() {
    if (pid_ > 0) wait();
  }
  LauncherProcess(const LauncherProcess&) = delete;
  LauncherProcess& operator=(const LauncherProcess&) = delete;

  void send(int signal) const { ::kill(pid_, signal); }

  // Reads the output to its end. Returns the exit code, or -signal.
  int wait() {
    pollfd fds[2] = {{out_.read_end.get(), POLLIN, 0}, {err_.read_end.get(), POLLIN, 0}};
    std::string* texts[2] = {&out, &err};
    while (fds[0].fd >= 0 || fds[1].fd >= 0) {
      ::poll(fds, 2, -1);
      for (int i : {0, 1}) {
        if (fds[i].revents != 0 && !read_available(fds[i].fd, *texts[i])) fds[i].fd = -1;
      }
    }
    int status = 0;
    ::waitpid(pid_, &status, 0);
    pid_ = -1;
    const Ending ending = ending_of(status);
    return ending.signal != 0 ? -ending.signal : ending.exit_code;
  }

  // Returns true if the launcher ends although nobody reads its output. The limit only bounds a
  // hang.
  bool ends_unread() const {
    const FileDescriptor process = watch_child(pid_);
    pollfd ended{process.get(), POLLIN, 0};
    return ::poll(&ended, 1, 120000) == 1;
  }

  std::string out, err;

 private:
  pid_t pid_ = -1;
  Pipe out_, err_;
};

void wait_for(const std::string& file) {
  while (!std::filesystem::exists(file)) std::this_thread::sleep_for(std::chrono::milliseconds(5));
}

bool alive(pid_t pid) {
  std::ifstream stat("/proc/" + std::to_string(pid) + "/stat");
  std::string number, name, state;
  if (!(stat >> number >> name >> state)) return false;
  return state != "Z" && state != "X";
}

// A killed process may exist for another moment.
bool is_gone(pid_t pid) {
  for (int i = 0; i < 24000 && alive(pid); ++i)  // two minutes
    std::this_thread::sleep_for(std::chrono::milliseconds(5));
  return !alive(pid);
}

pid_t pid_in(const std::string& file) {
  return std::stoi(read_file(file));
}

// Parts of scripts: notify() creates a file, await() waits for it. The file is complete as soon as
// it exists.
std::string notify(const std::string& file, const std::string& what = "") {
  const std::string path = "$RANK_FOLDER/" + file;
  return "echo " + what + " > " + path + ".part; mv " + path + ".part " + path + "; ";
}
std::string await(const std::string& file) {
  return "until [ -e $RANK_FOLDER/" + file + " ]; do sleep 0.01; done; ";
}

struct Outcome {
  int code;
  std::string out, err;
};

Outcome run(const std::vector<std::string>& scripts) {
  const TempFolder folder;
  std::vector<RankCommand> commands;
  for (const std::string& text : scripts) commands.push_back(script(text, folder));
  LauncherProcess launcher(commands);
  const int code = launcher.wait();
  return {code, launcher.out, launcher.err};
}

// ---- Output ----

TEST(Launcher, ReturnsZeroIfAllRanksDo) {
  EXPECT_EQ(run({"exit 0", "exit 0", "exit 0"}).code, 0);
}

TEST(Launcher, PrefixesEverythingButTheOutputOfRankZero) {
  const Outcome o = run({"echo step: 1; echo careful >&2", "echo hello; echo oh >&2"});
  EXPECT_THAT(o.out, AllOf(HasSubstr("step: 1\n"), HasSubstr("[rank 1] hello\n")));
  EXPECT_THAT(o.out, Not(HasSubstr("[rank 0]")));
  EXPECT_THAT(o.err, AllOf(HasSubstr("[rank 0] careful\n"), HasSubstr("[rank 1] oh\n")));
}

TEST(Launcher, PrefixesNothingIfThereIsOneRank) {
  const Outcome o = run({"echo step: 1; echo careful >&2"});
  EXPECT_EQ(o.out, "step: 1\n");
  EXPECT_EQ(o.err, "careful\n");
}

TEST(Launcher, KeepsLinesWholeAndHandsOnAnUnfinishedOne) {
  const Outcome o = run({"exit 0", "printf one; sleep 0.05; printf ' line\\nand a half'"});
  EXPECT_EQ(o.out, "[rank 1] one line\n[rank 1] and a half\n");
}

TEST(Launcher, PassesOnAllLinesOfAFloodAtTheEnd) {
  const Outcome o = run({"i=0; while [ $i -lt 20000 ]; do echo line $i; i=$((i+1)); done"});
  EXPECT_THAT(o.out, HasSubstr("line 0\n"));
  EXPECT_THAT(o.out, ::testing::EndsWith("line 19999\n"));
}

TEST(Launcher, GivesRanksTheirVariablesAndNoInput) {
  LauncherProcess launcher(
      {{{"/bin/sh", "-c", "echo threads $OMP_NUM_THREADS; wc -c"}, {{"OMP_NUM_THREADS", "7"}}}});
  EXPECT_EQ(launcher.wait(), 0);
  EXPECT_EQ(launcher.out, "threads 7\n0\n");
}

TEST(Launcher, GoesOnWhenNobodyReadsItsOutput) {
  const TempFolder folder;
  Pipe out = make_pipe();
  const pid_t pid = ::fork();
  if (pid == 0) {
    ::dup2(out.write_end.get(), STDOUT_FILENO);
    out.read_end.reset();
    ::_exit(launch_ranks(
        {script("echo a; sleep 0.05; echo b; echo done > $RANK_FOLDER/done", folder)}));
  }
  out.read_end.reset();
  int status = 0;
  ::waitpid(pid, &status, 0);
  EXPECT_EQ(ending_of(status).exit_code, 0);
  EXPECT_EQ(read_file(folder / "done"), "done\n");
}

// ---- Failures ----

TEST(Launcher, NamesTheRankThatFailedWithItsExitCodeAndLastLines) {
  const Outcome o = run({"sleep 300", "echo reading; echo no such tensor >&2; exit 7"});
  EXPECT_EQ(o.code, 1);
  EXPECT_THAT(o.err,
              AllOf(HasSubstr("yoke: rank 1 of 2"),
                    HasSubstr("failed with exit code 7"),
                    HasSubstr("its last lines:\n    reading\n    no such tensor\n")));
}

TEST(Launcher, KeepsTheLastTwentyLines) {
  const Outcome o =
      run({"sleep 300", "i=0; while [ $i -lt 50 ]; do echo line $i; i=$((i+1)); done; exit 1"});
  EXPECT_THAT(o.err, AllOf(HasSubstr("last lines:\n    line 30\n"), HasSubstr("    line 49\n")));
}

TEST(Launcher, NamesTheSignalThatKilledARank) {
  const Outcome o = run({"sleep 300", "kill -SEGV $$"});
  EXPECT_EQ(o.code, 5);
  EXPECT_THAT(o.err,
              AllOf(HasSubstr("rank 1 of 2"), HasSubstr("was killed by signal 11 (SIGSEGV)")));
}

TEST(Launcher, PassesOnExitCodesThatHaveAMeaning) {
  EXPECT_EQ(run({"sleep 300", "exit 2"}).code, 2);
  EXPECT_EQ(run({"sleep 300", "exit 3"}).code, 3);
  EXPECT_EQ(run({"sleep 300", "exit 5"}).code, 5);
  EXPECT_EQ(run({"sleep 300", "exit 42"}).code, 1);
}

TEST(Launcher, KillsRanksThatIgnoreThePoliteSignal) {
  const Outcome o = run({"trap '' TERM; " + notify("deaf") + "while :; do sleep 300; done",
                         await("deaf") + "exit 1"});
  EXPECT_EQ(o.code, 1);
  EXPECT_THAT(o.err, HasSubstr("rank 1 of 2"));
}

// Rank 0 ends as `first` says, and a moment later rank 1 as `second` says.
Outcome run_both(const std::string& first, const std::string& second) {
  return run({await("ready") + notify("go") + first, notify("ready") + await("go") + second});
}

// The launcher decides within fractions of a second. A busy machine may run a rank too late for
// that, so a test has several attempts.
template <class Attempt, class Wanted>
Outcome attempts(Attempt attempt, Wanted wanted) {
  Outcome outcome = attempt();
  for (int i = 0; i < 30 && !wanted(outcome); ++i) outcome = attempt();
  return outcome;
}
auto has_code(int code) {
  return [code](const Outcome& o) { return o.code == code; };
}

TEST(Launcher, PrefersAKilledRankAsTheFirstCause) {
  const Outcome o = attempts([] { return run_both("exit 1", "kill -KILL $$"); }, has_code(5));
  EXPECT_EQ(o.code, 5);
  EXPECT_THAT(o.err, AllOf(HasSubstr("rank 1 of 2"), HasSubstr("signal 9 (SIGKILL)")));
}

TEST(Launcher, PrefersARankThatFailedOverOneThatLostItsPeer) {
  const Outcome o =
      attempts([] { return run_both("exit 5", "echo the reason; exit 2"); }, has_code(2));
  EXPECT_EQ(o.code, 2);
  EXPECT_THAT(o.err, AllOf(HasSubstr("rank 1 of 2"), HasSubstr("the reason")));
}

TEST(Launcher, WaitsForTheCauseWhenARankOnlyLostItsPeer) {
  // The cause ends only after it has been asked to.
  const std::string cause =
      "trap 'echo the reason; exit 2' TERM; " + notify("ready") + "while :; do sleep 0.01; done";
  const Outcome o = attempts([&] { return run({await("ready") + "exit 5", cause}); }, has_code(2));
  EXPECT_EQ(o.code, 2);
  EXPECT_THAT(
      o.err,
      AllOf(HasSubstr("rank 1 of 2"), HasSubstr("the reason"), Not(HasSubstr("rank 0 of 2"))));
}

TEST(Launcher, DoesNotBlameRanksThatItEndedItself) {
  const Outcome o = run({"sleep 300", "sleep 300", "exit 5"});
  EXPECT_EQ(o.code, 5);
  EXPECT_THAT(o.err, AllOf(HasSubstr("rank 2 of 3"), HasSubstr("it lost a peer")));
}

TEST(Launcher, DoesNotShowWhatSurvivorsSayAboutTheFailure) {
  const std::string survivor =
      "trap 'echo peer lost >&2; echo > $RANK_FOLDER/notified; exit 5' TERM; echo > "
      "$RANK_FOLDER/0; "
      "while :; do sleep 0.01; done";
  const TempFolder folder;
  LauncherProcess launcher(
      {script(survivor, folder),
       script("until [ -e $RANK_FOLDER/0 ]; do sleep 0.01; done; kill -KILL $$", folder)});
  EXPECT_EQ(launcher.wait(), 5);
  EXPECT_TRUE(std::filesystem::exists(folder / "notified"));
  EXPECT_THAT(launcher.err, AllOf(HasSubstr("rank 1 of 2"), Not(HasSubstr("peer lost"))));
}

TEST(Launcher, DoesNotShowASurvivorThatNoticesBeforeWeDo) {
  const std::string survivor =
      "until [ -e $RANK_FOLDER/pid ]; do sleep 0.01; done; read p < $RANK_FOLDER/pid; "
      "echo peer lost >&2; kill -KILL $p; exec sleep 300";
  const Outcome o = attempts(
      [&] {
        return run({survivor, notify("pid", "$$") + "exec sleep 300"});
      },
      [](const Outcome& o) { return o.err.find("peer lost") == std::string::npos; });
  EXPECT_EQ(o.code, 5);
  EXPECT_THAT(o.err, AllOf(HasSubstr("rank 1 of 2"), Not(HasSubstr("peer lost"))));
}

TEST(Launcher, SaysThatAProgramCannotBeStarted) {
  LauncherProcess launcher({{{"/no/such/program"}, {}}});
  EXPECT_EQ(launcher.wait(), 1);
  EXPECT_THAT(launcher.err, HasSubstr("cannot start /no/such/program: No such file or directory"));
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
    // The same signal counts again after two seconds.
    if (same) std::this_thread::sleep_for(std::chrono::milliseconds(2200));
    launcher.send(same ? SIGINT : SIGTERM);
    EXPECT_EQ(launcher.wait(), 130);
  }
}

TEST(Launcher, CountsTheSameSignalInARowOnce) {
  const TempFolder folder;
  LauncherProcess launcher(
      {script("trap 'sleep 0.3; echo saved; exit 130' INT; : > $RANK_FOLDER/0; while :; do sleep "
              "0.01; done",
              folder)});
  wait_for(folder / "0");
  for (int i = 0; i < 5; ++i) {
    launcher.send(SIGINT);
    std::this_thread::sleep_for(std::chrono::milliseconds(10));
  }
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
