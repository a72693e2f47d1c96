#include "core/base/subprocess.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <csignal>
#include <cstdio>
#include <cstdlib>

namespace yoke {
namespace {

using ::testing::HasSubstr;

SubprocessResult shell(const std::string& text, const SubprocessOptions& options = {}) {
  return run_subprocess({"/bin/sh", "-c", text}, options);
}

TEST(Subprocess, KeepsBothStreamsAndTheExitCode) {
  const SubprocessResult r = shell("echo out; echo err >&2; exit 3");
  EXPECT_EQ(r.out, "out\n");
  EXPECT_EQ(r.err, "err\n");
  EXPECT_EQ(r.ending.exit_code, 3);
  EXPECT_FALSE(r.timed_out);
}

TEST(Subprocess, KeepsMoreThanAPipeHolds) {
  EXPECT_EQ(shell("head -c 1000000 /dev/zero; head -c 500000 /dev/zero >&2").out.size(), 1000000u);
}

TEST(Subprocess, NamesTheSignal) {
  const SubprocessResult r = shell("kill -ABRT $$");
  EXPECT_EQ(r.ending.signal, SIGABRT);
  EXPECT_EQ(ending_text(r.ending), "signal 6 (SIGABRT)");
}

TEST(Subprocess, KillsAfterTheLimit) {
  // On a busy machine the shell may need longer than the first limit to start.
  SubprocessResult r;
  for (std::chrono::milliseconds limit{200}; r.out.empty() && limit < std::chrono::minutes(2);
       limit *= 4) {
    r = shell("echo begun; exec sleep 300", {.limit = limit});
    EXPECT_TRUE(r.timed_out);
  }
  EXPECT_EQ(r.out, "begun\n");
}

TEST(Subprocess, DoesNotWaitForWhatTheProcessLeavesBehind) {
  EXPECT_EQ(shell("sleep 300 & echo $!").ending.exit_code, 0);
}

TEST(Subprocess, LeavesStderrAloneIfAsked) {
  ::testing::internal::CaptureStderr();
  EXPECT_EQ(shell("echo err >&2", {.limit = {}, .capture_err = false}).err, "");
  EXPECT_EQ(::testing::internal::GetCapturedStderr(), "err\n");
}

TEST(Subprocess, ThrowsIfTheProgramCannotBeStarted) {
  try {
    run_subprocess({"/no/such/program"});
    FAIL();
  } catch (const Error& e) {
    EXPECT_THAT(e.what(), HasSubstr("cannot start /no/such/program: No such file or directory"));
  }
}

// ---- Copies of this process ----

TEST(Copy, ReturnsWhatTheFunctionPrintsAndItsCode) {
  const SubprocessResult r = run_copy([] {
    std::fputs("out", stdout);
    std::fputs("err", stderr);
    return 3;
  });
  EXPECT_EQ(r.out, "out");
  EXPECT_EQ(r.err, "err");
  EXPECT_EQ(r.ending.exit_code, 3);
}

TEST(Copy, DoesNotPrintWhatThisProcessHasInABuffer) {
  std::fputs("of this process\n", stdout);
  EXPECT_EQ(run_copy([] { return 0; }).out, "");
}

TEST(Copy, ReportsAnException) {
  const SubprocessResult r = run_copy([]() -> int { throw Error(YOKE_INTERNAL, "a reason"); });
  EXPECT_EQ(r.ending.exit_code, 1);
  EXPECT_EQ(r.err, "a reason\n");
}

TEST(Copy, EndsBySignalsThatThisProcessHandles) {
  const auto before = std::signal(SIGSEGV, [](int) { ::_exit(9); });
  const SubprocessResult r = run_copy([] { return std::raise(SIGSEGV); });
  std::signal(SIGSEGV, before);
  EXPECT_EQ(r.ending.signal, SIGSEGV);
}

TEST(Copy, IsKilledAfterTheLimit) {
  const SubprocessResult r = run_copy(
      [] {
        for (;;) ::pause();
        return 0;
      },
      {.limit = std::chrono::milliseconds(50)});
  EXPECT_TRUE(r.timed_out);
  EXPECT_EQ(r.ending.signal, SIGKILL);
}

TEST(Copy, EndsWithoutTheFunctionsOfAtexit) {
  static bool registered = std::atexit([] {
                             std::fputs("atexit\n", stdout);
                             std::fflush(stdout);
                           }) == 0;
  ASSERT_TRUE(registered);
  EXPECT_EQ(run_copy([] { return 0; }).out, "");
}

}  // namespace
}  // namespace yoke
