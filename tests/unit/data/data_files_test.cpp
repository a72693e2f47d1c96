#include "core/data/data_files.hpp"

#include <gmock/gmock.h>

#include "core/data/token_info.hpp"
#include "tests/support/temp_folder.hpp"
#include "tests/unit/data/token_files.hpp"

namespace yoke {
namespace {

namespace fs = std::filesystem;

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using testing::TempFolder;

std::vector<std::string> names(const TempFolder& folder, const std::string& entry) {
  std::vector<std::string> found;
  for (const std::string& file : expand_path("data.path", folder / entry))
    found.push_back(fs::relative(file, folder.path()).string());
  return found;
}

class Files : public ::testing::Test {
 protected:
  Files() {
    for (const char* name : {"web/s_10.bin", "web/s_9.bin", "web/.hidden", "code/a.bin", "top.txt"})
      folder_.write(name, "x");
  }
  Error refusal(const std::string& entry, const std::string& key = "data.path") const {
    return error_of([&] { expand_path(key, folder_ / entry); });
  }
  TempFolder folder_;
};

TEST_F(Files, OfAFolderOrPatternAreSortedByTheirBytes) {
  EXPECT_THAT(names(folder_, "web"), ElementsAre("web/s_10.bin", "web/s_9.bin"));
  EXPECT_THAT(names(folder_, "web/"), ElementsAre("web/s_10.bin", "web/s_9.bin"));
  EXPECT_THAT(names(folder_, "*/*.bin"), ElementsAre("code/a.bin", "web/s_10.bin", "web/s_9.bin"));
  EXPECT_THAT(names(folder_, "web/s_?.bin"), ElementsAre("web/s_9.bin"));
  EXPECT_THAT(names(folder_, "[wx]eb/s_[0-9].bin"), ElementsAre("web/s_9.bin"));
}

TEST_F(Files, ThatExistAreNoPatterns) {
  folder_.write("odd[1].txt", "x");
  EXPECT_THAT(names(folder_, "odd[1].txt"), ElementsAre("odd[1].txt"));
  EXPECT_THAT(names(folder_, "gone.txt"), ElementsAre("gone.txt"))
      << "opening it reports the fault";
}

TEST_F(Files, ThatDescribeOthersAreLeftOut) {
  for (const char* name : {"p/x.bin", "p/x.mask", "p/y.bin", "p/z.mask", "p/y.json"})
    folder_.write(name, "x");
  write_token_info(folder_ / "p/x.bin", {1, 1, 2, "0123456789abcdef", {}, true});
  // No other file belongs to z.mask, and y.json is no description.
  EXPECT_THAT(names(folder_, "p"), ElementsAre("p/x.bin", "p/y.bin", "p/y.json", "p/z.mask"));
  EXPECT_THAT(names(folder_, "p/x*"), ElementsAre("p/x.bin"));
  EXPECT_THAT(names(folder_, "p/x.mask"), ElementsAre("p/x.mask")) << "it is named";
}

TEST_F(Files, ThatNobodyHasAreReportedWithTheNearestNames) {
  Error e = refusal("web/t_*.bin", "eval.path");
  EXPECT_EQ(e.code(), YOKE_NOT_FOUND);
  EXPECT_THAT(e.what(), HasSubstr("eval.path = \"" + folder_ / "web/t_*.bin"));
  EXPECT_THAT(
      e.what(),
      HasSubstr("matches no file; nearest names in " + folder_ / "web" + ": s_9.bin, s_10.bin"));
  e = refusal("wib/*.bin");
  EXPECT_THAT(e.what(), HasSubstr("nearest names in " + folder_.path().string() + ": web"));
  EXPECT_THAT(refusal("elsewhere/*.txt").what(),
              HasSubstr("; no name in " + folder_.path().string() + " is similar"));
  fs::create_directory(folder_ / "empty");
  EXPECT_THAT(refusal("empty/*").what(), HasSubstr(folder_ / "empty" + " has no files"));
  EXPECT_THAT(refusal("empty").what(), HasSubstr("is a folder without files"));
}

TEST_F(Files, AreNotMixedWithFolders) {
  folder_.write("web/old/s.bin", "x");
  EXPECT_THAT(refusal("web").what(), HasSubstr("names the folder \"" + folder_ / "web/old" + "\""));
  EXPECT_THAT(refusal("w*").what(), HasSubstr("names the folder \"" + folder_ / "web" + "\""));
  EXPECT_EQ(refusal("w*").code(), YOKE_INVALID_ARGUMENT);
  EXPECT_THAT(refusal("**/s.bin").what(), HasSubstr("contains \"**\""));
}

TEST_F(Files, ThatAreRepeatedAreFoundUnderOtherNames) {
  const std::string a = folder_ / "top.txt", b = folder_ / "code/a.bin", c = folder_ / "same.txt";
  fs::create_symlink("top.txt", c);
  EXPECT_EQ(find_repeated_file({a, b, folder_ / "gone"}), "");
  EXPECT_EQ(find_repeated_file({a, b, a}), a);
  EXPECT_EQ(find_repeated_file({a, b, c}), c);
  EXPECT_EQ(find_repeated_file({b, folder_ / "web/../code/a.bin"}), folder_ / "web/../code/a.bin");
}

}  // namespace
}  // namespace yoke
