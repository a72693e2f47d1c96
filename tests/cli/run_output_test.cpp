// Tests what a run of the real program shows while it trains and afterwards.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <pty.h>
#include <sys/wait.h>
#include <unistd.h>

#include <nlohmann/json.hpp>
#include <set>

#include "tests/cli/playground.hpp"
#include "yoke/text.hpp"

namespace yoke::testing {
namespace {

using ::testing::HasSubstr;
using ::testing::IsSupersetOf;
using ::testing::Not;

std::set<std::string> span_names(const std::string& trace_file) {
  std::set<std::string> names;
  const auto trace = nlohmann::json::parse(read_file(trace_file));
  for (const auto& event : trace.at("traceEvents")) names.insert(event.at("name"));
  return names;
}

// Returns everything that a program writes to a terminal of 100 columns.
std::string on_terminal(const std::vector<std::string>& argv) {
  winsize size{};
  size.ws_row = 25;
  size.ws_col = 100;
  int terminal = -1;
  const pid_t pid = ::forkpty(&terminal, nullptr, nullptr, &size);
  if (pid == 0) {
    std::vector<char*> words;
    for (const std::string& word : argv) words.push_back(const_cast<char*>(word.c_str()));
    words.push_back(nullptr);
    ::execv(words[0], words.data());
    ::_exit(127);
  }
  std::string text;
  char part[4096];
  for (ssize_t n; (n = ::read(terminal, part, sizeof part)) > 0;) text.append(part, n);
  ::close(terminal);
  ::waitpid(pid, nullptr, 0);
  return text;
}

TEST(Trace, ShowsTheStepsAndWhatHappensInThem) {
  const Playground here;
  const SubprocessResult r =
      here.yoke({"train", "run.toml", "parallel_backend=ptd", "--nproc", "2", "profile.steps=2,3"});
  ASSERT_EQ(r.ending.exit_code, 0) << r.err;
  EXPECT_THAT(r.out, HasSubstr("traces are in runs/r/profile; open them in"));
  EXPECT_THAT(r.err, Not(HasSubstr("ERROR")));
  for (const char* file : {"rank_000.json", "rank_001.json"}) {
    const auto names = span_names(here.folder() / "runs/r/profile/" + file);
    EXPECT_THAT(names,
                IsSupersetOf({"ProfilerStep#2", "ProfilerStep#3", "ReduceScalars", "aten::mm"}));
    EXPECT_EQ(names.count("ProfilerStep#1") + names.count("ProfilerStep#4"), 0u);
  }
  const SubprocessResult joined = here.yoke({"trace", "runs/r"});
  EXPECT_EQ(joined.ending.exit_code, 0) << joined.err;
  EXPECT_THAT(span_names(here.folder() / "runs/r/profile/all_ranks.json"),
              IsSupersetOf({"step 2", "step 3", "ReduceScalars", "aten::mm"}));
  const SubprocessResult none = here.yoke({"trace", "runs"});
  EXPECT_EQ(none.ending.exit_code, 2);
  EXPECT_THAT(none.err, HasSubstr("yoke: runs/profile has no traces; give a run folder"));
}

// The number of a closed stream goes to the next file that is opened. A run has ended in a wait for
// that file to take what was meant for the stream.
TEST(Output, MayBeClosed) {
  const Playground here;
  for (const char* closed : {"<&-", ">&-", "2>&-", "<&- >&- 2>&-"}) {
    const std::string command = concat(
        Playground::program(), " train run.toml --nproc 2 run.dir='runs/", closed, "' ", closed);
    SubprocessOptions options;
    options.limit = std::chrono::seconds(300);
    const SubprocessResult r = run_subprocess(
        {"/usr/bin/env", "-C", here.folder().path().string(), "sh", "-c", command}, options);
    EXPECT_EQ(r.ending.exit_code, 0) << closed << r.err;
  }
}

TEST(EventFile, IsMadeUnlessUnwanted) {
  const Playground here;
  ASSERT_EQ(here.yoke({"train", "run.toml", "train.steps=1"}).ending.exit_code, 0);
  ASSERT_EQ(here.yoke({"train", "run.toml", "train.steps=1", "metrics.tensorboard=false"})
                .ending.exit_code,
            0);
  EXPECT_TRUE(std::filesystem::exists(here.folder() / "runs/r/tensorboard"));
  EXPECT_FALSE(std::filesystem::exists(here.folder() / "runs/r-2/tensorboard"));
}

TEST(Progress, IsOneLineInPlaceOnATerminalAndNothingElsewhere) {
  const Playground here;
  const std::vector<std::string> words{here.program(),
                                       "train",
                                       here.folder() / "run.toml",
                                       "data.path=" + here.folder() / "text.txt",
                                       "run.dir=" + here.folder() / "tty"};
  const std::string text = on_terminal(words);
  EXPECT_THAT(text, HasSubstr("\r\033[Kstep 1/4 [#####---------------]  25%  loss "));
  EXPECT_TRUE(text.ends_with("\r\033[K")) << "the line is taken away at the end";
  EXPECT_THAT(here.yoke({"train", "run.toml"}).out, Not(HasSubstr("1/4")));
}

}  // namespace
}  // namespace yoke::testing
