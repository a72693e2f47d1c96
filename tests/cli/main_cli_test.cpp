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
      {"--nproc", "2", "train"},
      "yoke: unknown flag '--nproc'; allowed: --help, --version; other flags follow the command: "
      "yoke train CONFIG --nproc 2\n");
  expect_misuse(
      {"--config=run.toml"},
      "yoke: unknown flag '--config=run.toml'; allowed: --help, --version; other flags follow the "
      "command: yoke train CONFIG --nproc 2\n");
  expect_misuse({"run.toml"},
                "yoke: unknown command 'run.toml'; allowed: train, plan, compare, generate, "
                "checkpoint, data, "
                "backends, trace, config, doctor; did you mean 'yoke train run.toml'?\n");
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
      "yoke config show: unexpected '--orign'; did you mean '--origin'?; see: yoke config show "
      "--help\n");
  expect_misuse(
      {"train", "x.toml", "--nprocs", "2"},
      "yoke train: unexpected '--nprocs'; did you mean '--nproc'?; see: yoke train --help\n");
  expect_misuse({"train"}, "yoke train: CONFIG is required; see: yoke train --help\n");
  expect_misuse({"config", "import"},
                "yoke config import: FILE is required; see: yoke config import --help\n");
}

TEST(Yoke, KnowsTheFlagsOfOtherLaunchers) {
  for (const char* flag : {"--nproc-per-node", "--nproc_per_node=2", "--num_processes", "-np"})
    expect_misuse({"train", "x.toml", flag},
                  std::string("yoke train: unexpected '") + flag +
                      "'; did you mean '--nproc'?; see: yoke train --help\n");
  expect_misuse(
      {"train", "--config", "x.toml"},
      "yoke train: unexpected '--config'; the run file is given without a flag; see: yoke "
      "train --help\n");
  expect_misuse({"trace", "--config", "x"},
                "yoke trace: unexpected '--config'; see: yoke trace --help\n");
  expect_misuse({"train", "x.toml", "--learning-rate=3"},
                "yoke train: unexpected '--learning-rate=3'; a key of the run file is written "
                "KEY=VALUE without hyphens, such as train.steps=10; see: yoke train --help\n");
}

TEST(Yoke, HelpIsACommandAsWell) {
  const YokeInstall install;
  const auto same = [&](const std::vector<std::string>& a, const std::vector<std::string>& b) {
    const SubprocessResult x = install.run(a), y = install.run(b);
    EXPECT_EQ(x.ending.exit_code, 0);
    EXPECT_EQ(x.out, y.out);
    EXPECT_EQ(x.err, "");
  };
  same({"help"}, {"--help"});
  same({"help", "train"}, {"train", "--help"});
  same({"help", "config", "import"}, {"config", "import", "--help"});
  expect_misuse(
      {"help", "trian"},
      "yoke: unknown command 'trian'; allowed: train, plan, compare, generate, checkpoint, data, "
      "backends, trace, config, doctor; did you mean 'train'?\n");
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
