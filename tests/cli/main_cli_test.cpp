// Tests `yoke` itself: help, version, unknown commands and flags.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <fstream>

#include "tests/cli/yoke_install.hpp"

namespace yoke {
namespace {

using ::testing::HasSubstr;
using ::testing::MatchesRegex;
using ::testing::Not;
using ::testing::StartsWith;
using testing::YokeInstall;

void expect_misuse(const std::vector<std::string>& args, const std::string& text) {
  const SubprocessResult r = YokeInstall().run(args);
  EXPECT_EQ(r.ending.exit_code, 2) << text;
  EXPECT_EQ(r.out, "");
  EXPECT_EQ(r.err, text);
}

TEST(Yoke, HelpListsTheCommands) {
  for (const char* flag : {"--help", "-h"}) {
    const SubprocessResult r = YokeInstall().run({flag});
    EXPECT_EQ(r.ending.exit_code, 0);
    EXPECT_EQ(r.err, "");
    for (const char* command :
         {"train", "compare", "generate", "checkpoint", "data", "backends", "config", "doctor"}) {
      EXPECT_THAT(r.out, HasSubstr(std::string("\n  ") + command + " "));
    }
  }
}

TEST(Yoke, EveryCommandHasHelp) {
  const YokeInstall install;
  for (const char* command :
       {"train", "compare", "generate", "checkpoint", "data", "backends", "config", "doctor"}) {
    const SubprocessResult r = install.run({command, "--help"});
    EXPECT_EQ(r.ending.exit_code, 0) << command;
    EXPECT_EQ(r.err, "") << command;
    EXPECT_THAT(r.out, HasSubstr(std::string("yoke ") + command)) << command;
  }
}

TEST(Yoke, SaysItsVersionAndThatOfTheContract) {
  const SubprocessResult r = YokeInstall().run({"--version"});
  EXPECT_EQ(r.ending.exit_code, 0);
  EXPECT_THAT(r.out,
              MatchesRegex("yoke [0-9]+\\.[0-9]+\\.[0-9]+ \\(backend contract 1\\.[0-9]+\\)\n"));
}

TEST(Yoke, WithoutACommandShowsHelpAsAnError) {
  const SubprocessResult r = YokeInstall().run({});
  EXPECT_EQ(r.ending.exit_code, 2);
  EXPECT_EQ(r.out, "");
  EXPECT_THAT(r.err, HasSubstr("usage: yoke COMMAND"));
}

TEST(Yoke, NamesTheCommandThatWasMeant) {
  expect_misuse(
      {"trian"},
      "yoke: unknown command 'trian'; allowed: train, plan, compare, generate, checkpoint, data, "
      "backends, trace, config, doctor; did you mean "
      "'train'?\n");
  expect_misuse(
      {"qwerty"},
      "yoke: unknown command 'qwerty'; allowed: train, plan, compare, generate, checkpoint, data, "
      "backends, trace, config, doctor\n");
  expect_misuse(
      {"--hlep"},
      "yoke: unknown flag '--hlep'; allowed: --help, --version; did you mean '--help'?\n");
}

TEST(Yoke, NamesTheWordOfACommandThatWasMeant) {
  expect_misuse({"config", "shw"},
                "yoke config: unknown command 'shw'; allowed: show, schema, import; did you mean "
                "'show'?; see: yoke "
                "config --help\n");
  expect_misuse(
      {"config", "show", "--orign", "x.toml"},
      "yoke config: unexpected '--orign'; did you mean '--origin'?; see: yoke config --help\n");
  expect_misuse(
      {"train", "x.toml", "--nprocs", "2"},
      "yoke train: unexpected '--nprocs'; did you mean '--nproc'?; see: yoke train --help\n");
  expect_misuse({"train"}, "yoke train: CONFIG is required; see: yoke train --help\n");
}

TEST(Yoke, SaysThatItsOutputWasLost) {
  if (!std::ifstream("/dev/full")) GTEST_SKIP() << "this system has no /dev/full";
  const YokeInstall install;
  const SubprocessResult r =
      run_subprocess({"/bin/sh", "-c", (install.folder() / "bin/yoke") + " --help > /dev/full"});
  EXPECT_EQ(r.ending.exit_code, 1);
  EXPECT_THAT(r.err, StartsWith("yoke: the output could not be written"));
}

}  // namespace
}  // namespace yoke
