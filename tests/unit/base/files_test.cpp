#include "core/base/files.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/stat.h>

#include "tests/unit/checkpoint/fake_state.hpp"
#include "tests/unit/metrics/temp_folder.hpp"

namespace yoke {
namespace {

using ::testing::HasSubstr;

TEST(File, WritesAndReadsAtAnyPlace) {
  const TempDir dir;
  File out = File::create(dir / "a");
  out.reserve(100);
  out.write_at("hello", 5, 50);
  out.sync_data();
  out.close();
  const File in = File::open_for_reading(dir / "a");
  EXPECT_EQ(in.size(), 100U);
  char text[5];
  in.read_at(text, 5, 50);
  EXPECT_EQ(std::string(text, 5), "hello");
}

TEST(File, SaysWhereItEndsTooEarly) {
  const TempDir dir;
  spill(dir / "a", "1234567");
  char text[8];
  const Outcome error = error_of([&] { File::open_for_reading(dir / "a").read_at(text, 8, 4); });
  EXPECT_EQ(error.code, YOKE_DATA_LOSS);
  EXPECT_EQ(error.text, dir / "a ends at byte 7, but 5 more bytes are needed");
}

TEST(File, RefusesWhatIsNoRegularFile) {
  const TempDir dir;
  ASSERT_EQ(::mkfifo((dir / "pipe").c_str(), 0600), 0);
  EXPECT_EQ(error_of([&] { File::open_for_reading(dir / "pipe"); }).code, YOKE_DATA_LOSS);
  EXPECT_EQ(error_of([&] { File::open_for_reading(dir.path()); }).code, YOKE_DATA_LOSS);
  EXPECT_EQ(error_of([&] { File::open_for_reading(dir / "none"); }).code, YOKE_NOT_FOUND);
}

TEST(File, NeverOverwritesWhenCreating) {
  const TempDir dir;
  spill(dir / "a", "old");
  EXPECT_THAT(error_of([&] { File::create(dir / "a"); }).text,
              HasSubstr("cannot create " + (dir / "a")));
  EXPECT_EQ(slurp(dir / "a"), "old");
}

TEST(MakePathDurable, HasNoWarningForAFolderOnADisk) {
  const TempDir dir;
  make_folders(dir / "a/b");
  const std::string warning = make_path_durable(dir / "a/b");
  if (!warning.empty()) GTEST_SKIP() << warning;
}

TEST(MakePathDurable, WarnsOfAFolderInMemory) {
  if (!std::filesystem::is_directory("/dev/shm")) GTEST_SKIP() << "no /dev/shm here";
  EXPECT_THAT(make_path_durable("/dev/shm"),
              HasSubstr("/dev/shm lies in memory (tmpfs); a power failure may lose this folder"));
}

TEST(MakePathDurable, ReportsAFolderThatIsMissing) {
  const TempDir dir;
  EXPECT_EQ(error_of([&] { make_path_durable(dir / "none"); }).code, YOKE_NOT_FOUND);
}

TEST(ExchangePaths, KeepsBoth) {
  const TempDir dir;
  spill(dir / "a", "1");
  spill(dir / "b", "2");
  exchange_paths(dir / "a", dir / "b");
  EXPECT_EQ(slurp(dir / "a") + slurp(dir / "b"), "21");
}

TEST(MakeFolders, MakesAllThatIsMissingAndNothingElse) {
  const TempDir dir;
  make_folders(dir / "a/b/c");
  make_folders(dir / "a/b/c");
  EXPECT_TRUE(std::filesystem::is_directory(dir / "a/b/c"));
  spill(dir / "file", "");
  EXPECT_THAT(error_of([&] { make_folders(dir / "file"); }).text, HasSubstr("is not a folder"));
  EXPECT_NE(error_of([&] { make_folders(dir / "file/x"); }).code, YOKE_OK);
}

TEST(ReplaceText, LeavesNothingBeside) {
  const TempDir dir;
  replace_text(dir / "a", "one");
  replace_text(dir / "a", "two");
  EXPECT_EQ(slurp(dir / "a"), "two");
  EXPECT_EQ(std::distance(std::filesystem::directory_iterator(dir.path()), {}), 1);
}

TEST(ReadText, RefusesMoreThanAllowed) {
  const TempDir dir;
  spill(dir / "a", "12345");
  EXPECT_EQ(read_text(dir / "a", 5), "12345");
  EXPECT_EQ(error_of([&] { read_text(dir / "a", 4); }).code, YOKE_DATA_LOSS);
}

TEST(File, ReservesNothingForAnEmptyFile) {
  const TempDir dir;
  File file = File::create(dir / "empty");
  file.reserve(0);
  EXPECT_EQ(file.size(), 0u);
  file.reserve(5);
  EXPECT_EQ(file.size(), 5u);
}

TEST(FolderLock, IsHeldByOneAtATime) {
  const TempDir dir;
  {
    const FolderLock first(dir.path());
    EXPECT_TRUE(first.held());
    EXPECT_TRUE(first.exclusive());
    EXPECT_FALSE(FolderLock(dir.path()).held());
  }
  EXPECT_TRUE(FolderLock(dir.path()).held());
}

}  // namespace
}  // namespace yoke
