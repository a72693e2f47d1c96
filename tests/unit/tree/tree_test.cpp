// Checks this repository against the rules of CONTRIBUTING.md.
#include <gtest/gtest.h>

#include <cstdlib>
#include <fstream>
#include <iterator>
#include <regex>
#include <string>

#include "tests/unit/tree/rules.hpp"

namespace yoke::tree {
namespace {

namespace fs = std::filesystem;

Path source() {
  return std::getenv("YOKE_SOURCE");
}

std::string text_of(const Path& file) {
  std::ifstream in(file);
  return {std::istreambuf_iterator<char>(in), {}};
}

void expect_none(const Violations& found) {
  for (const std::string& f : found) ADD_FAILURE() << f;
}

TEST(Tree, TheContractIncludesOnlyStddefAndStdint) {
  const std::string text = text_of(source() / "sdk/include/yoke/parallel_backend.h");
  const std::regex include(R"(#include[^\n]*)");
  std::vector<std::string> includes;
  for (std::sregex_iterator it(text.begin(), text.end(), include), end; it != end; ++it)
    includes.push_back(it->str());
  EXPECT_EQ(includes, (std::vector<std::string>{"#include <stddef.h>", "#include <stdint.h>"}));
}

TEST(Tree, SdkIncludesNothingOfCoreOrPlugins) {
  expect_none(
      lines_matching(source(), "sdk", std::regex(R"rx(#include\s+"(core|plugins|tests)/)rx")));
}

TEST(Tree, CoreIncludesNoPluginAndNoTest) {
  expect_none(
      lines_matching(source(), "core", std::regex(R"rx(#include\s+"(plugins|tests|bench)/)rx")));
}

TEST(Tree, FoldersOfCoreIncludeOnlyWhatIsBelowThem) {
  expect_none(upward_includes(source()));
}

TEST(Tree, FoldersOfCoreHaveFewArrows) {
  auto arrows = folder_arrows(source());
  // main.cpp and train.cpp are in no folder of core/.
  std::erase_if(arrows, [](const auto& arrow) { return arrow.first == "core"; });
  EXPECT_LE(arrows.size(), 70u) << "folders of core/ that include each other, directly";
  EXPECT_GE(arrows.size(), 40u) << "too few to be true: does the scan still find includes?";
}

TEST(Tree, CoreAndSdkNameNoPlugin) {
  std::string names;
  for (const auto& entry : fs::directory_iterator(source() / "plugins")) {
    if (entry.is_directory())
      names += (names.empty() ? "" : "|") + entry.path().filename().string();
  }
  ASSERT_FALSE(names.empty());
  const std::regex forbidden("\\b(" + names + ")\\b");
  expect_none(lines_matching(source(), "core", forbidden));
  expect_none(lines_matching(source(), "sdk", forbidden));
}

TEST(Tree, PluginsIncludeOnlyTheirOwnFolderAndTheSdk) {
  for (const auto& entry : fs::directory_iterator(source() / "plugins")) {
    if (!entry.is_directory()) continue;
    const std::string name = entry.path().filename().string();
    expect_none(
        lines_matching(source(),
                       "plugins/" + name,
                       std::regex(R"rx(#include\s+"(core/|tests/|plugins/(?!)rx" + name + "/))")));
  }
}

TEST(Tree, NoFileSeesBothLibTorchAndSpdlog) {
  for (const auto& entry : fs::recursive_directory_iterator(source() / "core")) {
    if (!entry.is_regular_file()) continue;
    const std::string text = text_of(entry.path());
    const bool torch = std::regex_search(text, std::regex(R"(#include\s+[<"](ATen|torch|c10)/)"));
    const bool spdlog = std::regex_search(text, std::regex(R"(#include\s+[<"](spdlog|fmt)/)"));
    EXPECT_FALSE(torch && spdlog) << entry.path();
  }
}

TEST(Tree, TheTourOfTheReadmeNamesFilesThatExist) {
  const std::string text = text_of(source() / "README.md");
  const std::regex step(R"(\n[1-9]\. `([^`]+)`)");
  int count = 0;
  for (std::sregex_iterator it(text.begin(), text.end(), step), end; it != end; ++it, ++count) {
    EXPECT_TRUE(fs::exists(source() / (*it)[1].str())) << (*it)[1];
  }
  EXPECT_EQ(count, 7);
}

TEST(Tree, AvoidedWordsDoNotComeBack) {
  expect_none(avoided_words(source()));
}

TEST(Tree, TrailingCommentsBeginWithANoun) {
  expect_none(trailing_fragments(source()));
}

TEST(Tree, CommentsAreNotWide) {
  expect_none(wide_comments(source()));
}

TEST(Tree, DocumentsThatCommentsNameExist) {
  expect_none(missing_documents(source()));
}

TEST(Tree, FilesAreShort) {
  expect_none(long_files(source()));
}

TEST(Tree, FunctionsAreShortAndTakeFewParameters) {
  if (!has_program("ctags")) GTEST_SKIP() << "no ctags; scripts/setup installs it";
  expect_none(large_functions(source()));
}

TEST(Tree, EveryFileIsFormatted) {
  if (!has_program("clang-format")) GTEST_SKIP() << "no clang-format; scripts/setup installs it";
  expect_none(unformatted_files(source()));
}

}  // namespace
}  // namespace yoke::tree
