#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <nlohmann/json.hpp>

#include "tests/cli/yoke_install.hpp"

namespace yoke {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::MatchesRegex;
using Json = nlohmann::json;
using testing::YokeInstall;

TEST(BackendsList, ShowsWhatEachBackendCanDo) {
  const YokeInstall install;
  install.add_toy("toy");
  install.add_toy("toy_later");
  const SubprocessResult r = install.run({"backends", "list"});
  EXPECT_EQ(r.ending.exit_code, 0);
  EXPECT_EQ(r.err, "");
  const std::string folder = install.folder() / "lib/yoke/backends";
  EXPECT_EQ(r.out,
            "name       version  axes         ZeRO stages  dtypes     LibTorch  path\n"
            "toy        1.2.3    dp_shard tp  0 3          fp32 fp64  -         " +
                folder +
                "/toy.so\n"
                "toy_later  1.2.3    dp_shard tp  0 3          fp32 fp64  -         " +
                folder + "/toy_later.so\n");
}

TEST(BackendsList, SaysWhyOthersAreRejectedAndGoesOn) {
  const YokeInstall install;
  for (const char* name : {"toy", "toy_crash_on_load", "toy_no_entry", "toy_unresolved"})
    install.add_toy(name);
  install.folder().write("lib/yoke/backends/My-Own.so", "x");
  const SubprocessResult r = install.run({"backends", "list"});
  EXPECT_EQ(r.ending.exit_code, 0);
  EXPECT_THAT(r.out, AllOf(HasSubstr("\ntoy   1.2.3"), HasSubstr("rejected:")));
  EXPECT_THAT(r.out,
              AllOf(HasSubstr("killed by signal 11 (SIGSEGV) while loading"),
                    HasSubstr("does not export the symbol"),
                    HasSubstr("undefined symbol"),
                    HasSubstr("the name 'My-Own' is not allowed")));
}

TEST(BackendsList, ShowsShadowedOnesWithTheOneThatIsTaken) {
  const YokeInstall install;
  install.add_toy("toy");
  install.add_toy("toy", "first");
  const SubprocessResult r =
      install.run({"backends", "list"}, {"YOKE_BACKEND_PATH=" + (install.folder() / "first")});
  EXPECT_THAT(r.out,
              HasSubstr("shadowed:\n  " + (install.folder() / "lib/yoke/backends/toy.so") + " (" +
                        (install.folder() / "first/toy.so") + " comes first)"));
}

TEST(BackendsList, PrintsJson) {
  const YokeInstall install;
  install.add_toy("toy");
  install.add_toy("toy_short");
  install.add_toy("toy", "first");
  const SubprocessResult r = install.run({"backends", "list", "--json"},
                                         {"YOKE_BACKEND_PATH=" + (install.folder() / "first")});
  const Json rows = Json::parse(r.out);
  ASSERT_EQ(rows.size(), 3u);
  EXPECT_EQ(rows[0]["status"], "ok");
  EXPECT_EQ(rows[0]["description"]["param_dtypes"], Json({"fp32", "fp64"}));
  EXPECT_EQ(rows[1]["status"], "shadowed");
  EXPECT_EQ(rows[1]["shadowed_by"], install.folder() / "first/toy.so");
  EXPECT_EQ(rows[2]["status"], "rejected");
  EXPECT_THAT(rows[2]["reason"].get<std::string>(),
              HasSubstr("too few for the required functions"));
}

TEST(BackendsList, SaysThatThereIsNone) {
  const YokeInstall install;
  const SubprocessResult r = install.run({"backends", "list"});
  EXPECT_EQ(r.ending.exit_code, 0);
  EXPECT_EQ(r.out, "no usable backend found; see: yoke backends path\n");
}

TEST(BackendsInfo, ShowsTheDescriptionAndTheOptions) {
  const YokeInstall install;
  install.add_toy("toy");
  const SubprocessResult r = install.run({"backends", "info", "toy"});
  EXPECT_EQ(r.ending.exit_code, 0);
  EXPECT_THAT(r.out,
              AllOf(HasSubstr("toy 1.2.3: does next to nothing"),
                    HasSubstr("vendor       the tests"),
                    HasSubstr("LibTorch     not used (neutral model)"),
                    HasSubstr("ABI          1.0")));
  EXPECT_THAT(r.out,
              HasSubstr("option      type    default  allowed      meaning\n"
                        "toy.gear    int     3        1 ... 5      how fast\n"
                        "toy.colour  string  red      red | green  colour of the box\n"));
}

TEST(BackendsInfo, TakesAPathAndPrintsJson) {
  const YokeInstall install;
  install.add_toy("toy", "elsewhere");
  const std::string path = install.folder() / "elsewhere/toy.so";
  const Json d = Json::parse(install.run({"backends", "info", path, "--json"}).out);
  EXPECT_EQ(d["path"], path);
  EXPECT_EQ(d["options"][0]["key"], "gear");
}

TEST(BackendsInfo, OfAnUnknownNameListsTheDirectoriesAndTheNearestName) {
  const YokeInstall install;
  install.add_toy("toy");
  const SubprocessResult r = install.run({"backends", "info", "toi"});
  EXPECT_EQ(r.ending.exit_code, 3);
  EXPECT_EQ(r.out, "");
  EXPECT_THAT(
      r.err,
      AllOf(HasSubstr("backend 'toi' not found; did you mean 'toy'?"),
            HasSubstr((install.folder() / "home/.local/share/yoke/backends") +
                      " (user): does not exist"),
            HasSubstr((install.folder() / "lib/yoke/backends") + " (this Yoke): 1 backend")));
}

TEST(BackendsInfo, OfABrokenOneSaysWhy) {
  const YokeInstall install;
  install.add_toy("toy_exit_on_load");
  const SubprocessResult r = install.run({"backends", "info", "toy_exit_on_load"});
  EXPECT_EQ(r.ending.exit_code, 3);
  EXPECT_THAT(r.err, HasSubstr("its last line: no licence found"));
}

TEST(BackendsPath, ShowsTheDirectoriesInTheOrderOfTheSearch) {
  const YokeInstall install;
  install.add_toy("toy");
  const SubprocessResult r =
      install.run({"backends", "path"}, {"YOKE_BACKEND_PATH=/nowhere", "XDG_DATA_HOME=/data"});
  EXPECT_EQ(r.ending.exit_code, 0);
  EXPECT_THAT(r.out,
              MatchesRegex("directory +from +state\n"
                           "/nowhere +YOKE_BACKEND_PATH +does not exist\n"
                           "/data/yoke/backends +user +does not exist\n"
                           "/[^ ]*/lib/yoke/backends +this Yoke +1 backend\n"
                           "/usr/local/lib/yoke/backends +machine +[^\n]*\n"));
}

TEST(Backends, RefusesAnUnknownCommand) {
  const YokeInstall install;
  const SubprocessResult r = install.run({"backends", "lst"});
  EXPECT_EQ(r.ending.exit_code, 2);
  EXPECT_THAT(r.err, HasSubstr("did you mean 'list'?"));
}

}  // namespace
}  // namespace yoke
