#include "core/base/log.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>
#include <sstream>
#include <thread>
#include <vector>

#include "tests/support/temp_folder.hpp"
#include "yoke/error.hpp"

namespace yoke {
namespace {

using ::testing::HasSubstr;
using ::testing::MatchesRegex;
using ::testing::internal::CaptureStderr;
using ::testing::internal::CaptureStdout;
using ::testing::internal::GetCapturedStderr;
using ::testing::internal::GetCapturedStdout;

// Returns what f writes to stdout and to stderr.
template <class F>
std::pair<std::string, std::string> output(F&& f) {
  CaptureStdout();
  CaptureStderr();
  f();
  const std::string out = GetCapturedStdout();
  return {out, GetCapturedStderr()};
}

std::vector<std::string> lines(const std::string& text) {
  std::vector<std::string> all;
  std::istringstream in(text);
  for (std::string line; std::getline(in, line);) all.push_back(line);
  return all;
}

TEST(Log, PutsTheExpectedOnStdoutAndTheUnexpectedOnStderr) {
  const auto [out, err] = output([] {
    Log log(LogOptions{});
    log.debug("hidden");
    log.info("step: 1");
    log.warning("slow");
    log.error("broken");
  });
  EXPECT_EQ(out, "step: 1\n");
  EXPECT_EQ(err, "warning: slow\nerror: broken\n");
}

TEST(Log, ShowsOnlyWhatReachesTheLevel) {
  const auto [out, err] = output([] {
    LogOptions options;
    options.level = YOKE_LOG_DEBUG;
    Log(options).debug("detail");
    options.level = YOKE_LOG_ERROR;
    Log(options).info("hidden");
    Log(options).warning("hidden");
  });
  EXPECT_EQ(out, "debug: detail\n");
  EXPECT_EQ(err, "");
}

TEST(Log, NamesTheRankBeforeEachLine) {
  const auto [out, err] = output([] {
    LogOptions options;
    options.rank = 2;
    Log(options).info("unnamed");
    options.prefix = true;
    Log(options).info("one\ntwo");
  });
  EXPECT_EQ(out, "unnamed\n[rank 2] one\n[rank 2] two\n");
}

TEST(Log, TakesBracesAndPercentSignsAsText) {
  const auto [out, err] = output([] { Log(LogOptions{}).info("{} {0} %v 100%"); });
  EXPECT_EQ(out, "{} {0} %v 100%\n");
}

TEST(Log, WritesEverythingWithTimeLevelAndRankToTheFile) {
  const testing::TempFolder folder;
  LogOptions options;
  options.rank = 1;
  options.console = false;
  options.file = folder / "logs/rank_001.log";
  const auto [out, err] = output([&] {
    Log log(options);
    log.debug("detail");
    log.error("broken");
  });
  EXPECT_EQ(out + err, "");
  const auto written = lines(testing::read_file(options.file));
  ASSERT_EQ(written.size(), 2u);
  EXPECT_THAT(written[0], MatchesRegex("....-..-.. ..:..:..\\.... debug +\\[rank 1\\] detail"));
  EXPECT_THAT(written[1], MatchesRegex("....-..-.. ..:..:..\\.... error +\\[rank 1\\] broken"));
}

TEST(Log, AppendsToAFileThatIsThere) {
  const testing::TempFolder folder;
  LogOptions options;
  options.console = false;
  options.file = folder / "log";
  Log(options).info("first");
  Log(options).info("second");
  EXPECT_EQ(lines(testing::read_file(options.file)).size(), 2u);
}

TEST(Log, WritesEveryLineAtOnce) {
  const testing::TempFolder folder;
  LogOptions options;
  options.console = false;
  options.file = folder / "log";
  Log log(options);
  log.info("seen while the log is open");
  EXPECT_THAT(testing::read_file(options.file), HasSubstr("seen while"));
}

TEST(Log, RefusesAFileThatCannotBeWritten) {
  LogOptions options;
  options.file = "/dev/null/rank_000.log";
  try {
    Log log(options);
    FAIL();
  } catch (const Error& e) {
    EXPECT_EQ(e.code(), YOKE_FAILED_PRECONDITION);
    EXPECT_THAT(e.what(), HasSubstr("cannot write the log file '/dev/null/rank_000.log'"));
  }
}

TEST(Log, SurvivesAFullDisk) {
  if (!std::filesystem::exists("/dev/full")) GTEST_SKIP() << "this system has no /dev/full";
  LogOptions options;
  options.console = false;
  options.file = "/dev/full";
  const auto [out, err] = output([&] {
    Log log(options);
    for (int i = 0; i < 10; ++i) log.info("lost");
  });
  EXPECT_EQ(out + err, "");
}

TEST(Log, LinesOfSeveralThreadsDoNotMix) {
  constexpr int kThreads = 4, kLines = 200;
  const testing::TempFolder folder;
  LogOptions options;
  options.file = folder / "log";
  const auto [out, err] = output([&] {
    Log log(options);
    std::vector<std::thread> threads;
    for (int t = 0; t < kThreads; ++t) {
      threads.emplace_back([&log, t] {
        for (int i = 0; i < kLines; ++i) log.info(std::string(50, static_cast<char>('a' + t)));
      });
    }
    for (std::thread& thread : threads) thread.join();
  });
  const auto shown = lines(out);
  EXPECT_EQ(shown.size(), size_t{kThreads * kLines});
  for (const std::string& line : shown) ASSERT_EQ(line, std::string(50, line[0]));
  EXPECT_EQ(lines(testing::read_file(options.file)).size(), size_t{kThreads * kLines});
}

}  // namespace
}  // namespace yoke
