// Tests that the project which `yoke backends new` creates can be built outside the tree, and that
// its backend trains.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>

#include "tests/cli/playground.hpp"

namespace yoke::testing {
namespace {

using ::testing::HasSubstr;

SubprocessResult shell(const Playground& place, const std::string& script) {
  SubprocessOptions options;
  options.limit = std::chrono::minutes(20);
  return run_subprocess(
      {"/usr/bin/env", "-C", place.folder().path().string(), "bash", "-c", "umask 022; " + script},
      options);
}

class NewBackend : public ::testing::TestWithParam<const char*> {};

TEST_P(NewBackend, BuildsOutsideTheTreeAndTrains) {
  const Playground place;
  const std::string language = GetParam();
  const SubprocessResult made = place.yoke({"backends", "new", "mine", "--lang", language});
  ASSERT_EQ(made.ending.exit_code, 0) << made.err;
  EXPECT_THAT(made.out, HasSubstr("cmake -S mine -B mine/build && cmake --build mine/build"));
  const SubprocessResult built =
      shell(place, "cmake -S mine -B mine/build && cmake --build mine/build");
  ASSERT_EQ(built.ending.exit_code, 0) << built.out << built.err;
  const std::string library = place.folder() / "mine/build/mine.so";
  const SubprocessResult info = place.yoke({"backends", "info", library});
  EXPECT_THAT(info.out, HasSubstr("mine 1.0.0: ")) << info.err;
  const SubprocessResult trained =
      place.yoke({"train", "run.toml", "parallel_backend=" + library, "--nproc", "2"});
  EXPECT_EQ(trained.ending.exit_code, 0) << trained.err;
  EXPECT_THAT(trained.out, HasSubstr("step:  4"));
}

INSTANTIATE_TEST_SUITE_P(Languages,
                         NewBackend,
                         ::testing::Values("c", "cpp", "torch"),
                         [](const auto& info) { return std::string(info.param); });

TEST(NewBackendRefuses, WhatCannotBeMade) {
  const Playground place;
  for (const char* name : {"My-Own", "9lives", "../mine", "a b", ""}) {
    const SubprocessResult r = place.yoke({"backends", "new", name});
    EXPECT_EQ(r.ending.exit_code, 2) << name;
    EXPECT_THAT(r.err,
                HasSubstr("allowed: a lower-case letter, then lower-case letters, digits and _"));
  }
  const SubprocessResult taken = place.yoke({"backends", "new", "serial"});
  EXPECT_EQ(taken.ending.exit_code, 2);
  EXPECT_THAT(taken.err, HasSubstr("a backend 'serial' is installed as /"));
  EXPECT_FALSE(std::filesystem::exists(place.folder().path() / "serial"));
  const SubprocessResult language = place.yoke({"backends", "new", "mine", "--lang", "rust"});
  EXPECT_EQ(language.ending.exit_code, 2);
  EXPECT_THAT(language.err, HasSubstr("--lang rust: allowed: c, cpp, torch"));
  EXPECT_FALSE(std::filesystem::exists(place.folder().path() / "mine"));
  ASSERT_EQ(place.yoke({"backends", "new", "mine"}).ending.exit_code, 0);
  const SubprocessResult again = place.yoke({"backends", "new", "mine"});
  EXPECT_EQ(again.ending.exit_code, 2);
  EXPECT_THAT(again.err, HasSubstr("./mine exists; choose another name, or remove it first"));
}

}  // namespace
}  // namespace yoke::testing
