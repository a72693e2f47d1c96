#include "core/launch/launcher.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

#include <filesystem>
#include <string>

#include "core/base/subprocess.hpp"
#include "tests/support/temp_folder.hpp"
#include "tests/unit/launch/launcher_process.hpp"

namespace yoke {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::Not;
using testing::read_file;
using testing::TempFolder;

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

// Runs two ranks: rank 0 ends with the script `first`, and a moment later rank 1 with `second`.
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
  // The rank that is the cause ends only when it receives SIGTERM.
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

}  // namespace
}  // namespace yoke
