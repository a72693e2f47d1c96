#include "core/metrics/run_folder.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <nlohmann/json.hpp>

#include "tests/unit/metrics/temp_folder.hpp"
#include "yoke/error.hpp"

namespace yoke {
namespace {

using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
namespace fs = std::filesystem;

TEST(FreeRunFolder, IsTheWantedOneWhenMissingOrEmpty) {
  const TempDir dir;
  EXPECT_EQ(free_run_folder(dir / "novels"), dir / "novels");
  EXPECT_FALSE(fs::exists(dir / "novels"));
  fs::create_directory(dir / "novels");
  EXPECT_EQ(free_run_folder(dir / "novels/"), dir / "novels");
}

TEST(FreeRunFolder, IsTheFirstNumberedSiblingOtherwise) {
  const TempDir dir;
  RunFolder first(dir / "novels");
  EXPECT_EQ(free_run_folder(dir / "novels"), dir / "novels-2");
  RunFolder second(dir / "novels-2");
  fs::create_directory(dir / "novels-3");
  EXPECT_EQ(free_run_folder(dir / "novels/"), dir / "novels-3");
}

TEST(FreeRunFolder, RefusesWhatCannotBeAFolder) {
  const TempDir dir;
  spill(dir / "file", "text");
  fs::create_symlink("nowhere", dir / "link");
  const std::string long_name(300, 'a');
  for (const auto& [name, reason] : {std::pair<std::string, const char*>{"file", "is not a folder"},
                                     {"file/a/b", "file is not a folder, so "},
                                     {"link", "is a link to nowhere, which does not exist"},
                                     {long_name, "File name too long"}}) {
    try {
      free_run_folder(dir / name);
      ADD_FAILURE() << name;
    } catch (const Error& e) {
      EXPECT_EQ(e.code(), YOKE_FAILED_PRECONDITION) << name;
      EXPECT_THAT(e.what(), AllOf(HasSubstr(dir / name), HasSubstr(reason)));
    }
  }
}

TEST(ExistingRunFolders, ComeNewestFirst) {
  const TempDir dir;
  EXPECT_TRUE(existing_run_folders(dir / "novels").empty());
  for (const char* name : {"novels", "novels-2", "novels-3", "novels-5", "other"})
    RunFolder(dir / name);
  EXPECT_THAT(existing_run_folders(dir / "novels"),
              ElementsAre(dir / "novels-3", dir / "novels-2", dir / "novels"));
}

TEST(RunFolder, ReplacesItsFilesWhole) {
  const TempDir dir;
  RunFolder run(dir / "a/b/novels");
  run.write("config.resolved.toml", "seed = 1\n");
  run.write("config.resolved.toml", "seed = 2\n");
  EXPECT_EQ(slurp(run.path() + "/config.resolved.toml"), "seed = 2\n");
  std::vector<std::string> names;
  for (const auto& entry : fs::directory_iterator(run.path()))
    names.push_back(entry.path().filename());
  EXPECT_THAT(names,
              ::testing::UnorderedElementsAre("config.resolved.toml", "logs", "checkpoints"));
  EXPECT_EQ(run.log(7), run.path() + "/logs/rank_007.log");
}

TEST(RunFolder, RecordsHowTheRunEnded) {
  const TempDir dir;
  RunFolder run(dir / "novels");
  run.begin();
  EXPECT_FALSE(fs::exists(run.path() + "/exit.json"));
  leave_exit_record(run.path(), {5, "rank 1 was lost", 42, 0});
  leave_exit_record(run.path(), {1, "a later one", -1});
  const auto json = nlohmann::json::parse(slurp(run.path() + "/exit.json"));
  EXPECT_EQ(json,
            (nlohmann::json{{"code", 5}, {"reason", "rank 1 was lost"}, {"step", 42}, {"rank", 0}}))
      << "the first record stays";
  run.begin();
  EXPECT_FALSE(fs::exists(run.path() + "/exit.json"));
}

TEST(RunFolder, ForgetsTheHangsOfEarlierAttempts) {
  const TempDir dir;
  RunFolder run(dir / "novels");
  run.write("logs/hang_rank_010.json", "{}");
  run.write("logs/hang_rank_002.json", "{}");
  run.write("logs/rank_000.log", "text");
  EXPECT_THAT(hang_reports(run.path()),
              ElementsAre(run.path() + "/logs/hang_rank_002.json",
                          run.path() + "/logs/hang_rank_010.json"));
  run.begin();
  EXPECT_THAT(hang_reports(run.path()), ::testing::IsEmpty());
  EXPECT_EQ(slurp(run.log(0)), "text");
  EXPECT_THAT(hang_reports(dir / "missing"), ::testing::IsEmpty());
}

TEST(Environment, SaysWhatTheRunRanOn) {
  const auto json = nlohmann::json::parse(environment_json({{"yoke", "0.1.0"}}));
  EXPECT_EQ(json["versions"]["yoke"], "0.1.0");
  for (const char* key : {"time", "compiler", "system", "processor", "cores", "memory"}) {
    EXPECT_TRUE(json.contains(key)) << key;
  }
}

}  // namespace
}  // namespace yoke
