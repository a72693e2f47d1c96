#include "core/config/located_path.hpp"

#include <gmock/gmock.h>

#include <filesystem>

#include "core/config/options.hpp"
#include "tests/unit/config/support.hpp"

namespace yoke {
namespace {

namespace fs = std::filesystem;
using ::testing::ElementsAre;
using ::testing::IsEmpty;

// Two folders: one with the run file, and the one in which `yoke` is started.
class LocatedPaths : public ::testing::Test {
 protected:
  LocatedPaths() {
    for (const char* folder : {"files/sub", "here"}) fs::create_directories(top_ / folder);
    fs::current_path(top_ / "here");
  }
  ~LocatedPaths() override { fs::current_path(before_); }

  const fs::path before_ = fs::current_path();
  const testing::TempFolder top_;
};

TEST_F(LocatedPaths, AreBesideTheRunFileIfSomethingIsThere) {
  top_.write("files/a.txt", "a");
  top_.write("files/sub/b.bin", "b");
  top_.write("here/c.txt", "c");
  EXPECT_EQ(locate("../files", "a.txt").path, "../files/a.txt");
  EXPECT_EQ(locate("../files", "./sub/../a.txt").path, "../files/a.txt");
  EXPECT_EQ(locate("../files", "sub").path, "../files/sub");
  EXPECT_EQ(locate("../files", "sub/*.bin").path, "../files/sub/*.bin");
  EXPECT_EQ(locate("../files", "sub/*.txt").path, "sub/*.txt") << "no file matches";
  EXPECT_EQ(locate("../files", "c.txt").path, "c.txt");
  EXPECT_EQ(locate("../files", "none").path, "none");
  EXPECT_EQ(locate("../files", "/dev/null").path, "/dev/null");
  EXPECT_EQ(locate("../files", "").path, "");
  EXPECT_EQ(locate("", "c.txt").path, "c.txt");
  EXPECT_EQ(locate("../here", "c.txt").path, "c.txt") << "it is the current folder";
  EXPECT_EQ(locate("../files", "a.txt").note, "");
}

TEST_F(LocatedPaths, OfTwoFilesAreReported) {
  top_.write("files/a.txt", "a");
  top_.write("here/a.txt", "b");
  EXPECT_EQ(locate("../files", "a.txt").path, "../files/a.txt");
  EXPECT_EQ(locate("../files", "a.txt").note,
            "../files/a.txt, beside the run file, is used; the current folder has a.txt as well");
  fs::remove(top_ / "here/a.txt");
  fs::create_symlink("../files/a.txt", top_ / "here/a.txt");
  EXPECT_EQ(locate("../files", "a.txt").note, "") << "it is the same file";
}

// Only the run file has a folder: a path on the command line is one of the current folder.
TEST_F(LocatedPaths, AreThoseOfTheRunFileOnly) {
  for (const char* file : {"files/a.txt", "here/a.txt", "files/b.txt"}) top_.write(file, "x");
  top_.write("files/run.toml",
             "parallel_backend = \"ox\"\nmodel.from = \"b.txt\"\nox.file = \"b.txt\"\n"
             "data.path = [\"a.txt\", \"b.txt\"]\nrun.dir = \"a.txt\"\n");
  const auto load = [](const std::vector<std::string>& words) {
    return load_config(
        "../files/run.toml", words, {}, [](const auto&) { return std::vector<std::string>{"ox"}; });
  };
  const LoadedConfig file = load({});
  EXPECT_EQ(file.run.model.from, "../files/b.txt");
  EXPECT_THAT(file.run.data.path, ElementsAre("../files/a.txt", "../files/b.txt"));
  EXPECT_EQ(file.run.run_dir, "a.txt") << "it is written, not read";
  EXPECT_THAT(file.notes,
              ElementsAre("data.path: ../files/a.txt, beside the run file, is used; the "
                          "current folder has a.txt as well"));
  OptionInfo info;
  info.key = "file";
  info.type = YOKE_OPTION_FILE;
  const auto item = [&](const LoadedConfig& config) {
    return check_options(config.run.backend_options, {"ox", "ox"}, {info}).items()[0];
  };
  EXPECT_EQ(item(file).string_value, "../files/b.txt");
  EXPECT_EQ(item(file).content, "x");
  const LoadedConfig words = load({"data.path=a.txt", "ox.file=a.txt"});
  EXPECT_THAT(words.run.data.path, ElementsAre("a.txt"));
  EXPECT_EQ(item(words).string_value, "a.txt");
  EXPECT_THAT(words.notes, IsEmpty());
}

}  // namespace
}  // namespace yoke
