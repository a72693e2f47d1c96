// Who may include whom, and what no file may contain (CONTRIBUTING.md).
#include <gtest/gtest.h>

#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <regex>
#include <string>
#include <vector>

namespace {

namespace fs = std::filesystem;

struct Line {
  std::string where;  // file:line, relative to the repository
  std::string text;
};

fs::path source() {
  return std::getenv("YOKE_SOURCE");
}

std::vector<Line> lines_of(const std::string& folder, const std::regex& names) {
  std::vector<Line> lines;
  if (!fs::exists(source() / folder)) return lines;
  for (const auto& entry : fs::recursive_directory_iterator(source() / folder)) {
    if (!entry.is_regular_file() || !std::regex_search(entry.path().filename().string(), names))
      continue;
    std::ifstream in(entry.path());
    std::string text;
    for (int n = 1; std::getline(in, text); ++n) {
      lines.push_back(
          {fs::relative(entry.path(), source()).string() + ":" + std::to_string(n), text});
    }
  }
  return lines;
}

const std::regex kCode(R"(\.(c|cpp|h|hpp|cu)$)");

std::vector<std::string> breaches(const std::string& folder, const std::regex& forbidden) {
  std::vector<std::string> found;
  for (const Line& line : lines_of(folder, kCode)) {
    if (std::regex_search(line.text, forbidden)) found.push_back(line.where + ": " + line.text);
  }
  return found;
}

void expect_none(const std::vector<std::string>& found) {
  for (const std::string& f : found) ADD_FAILURE() << f;
}

TEST(Tree, TheContractIncludesOnlyStddefAndStdint) {
  std::vector<std::string> includes;
  for (const Line& line : lines_of("sdk/include/yoke", std::regex("^parallel_backend.h$"))) {
    if (line.text.rfind("#include", 0) == 0) includes.push_back(line.text);
  }
  EXPECT_EQ(includes, (std::vector<std::string>{"#include <stddef.h>", "#include <stdint.h>"}));
}

TEST(Tree, SdkIncludesNothingOfCoreOrPlugins) {
  expect_none(breaches("sdk", std::regex(R"rx(#include\s+"(core|plugins|tests)/)rx")));
}

TEST(Tree, CoreIncludesNoPluginAndNoTest) {
  expect_none(breaches("core", std::regex(R"rx(#include\s+"(plugins|tests|bench)/)rx")));
}

TEST(Tree, CoreAndSdkNameNoPlugin) {
  std::string names;
  for (const auto& entry : fs::directory_iterator(source() / "plugins")) {
    if (entry.is_directory())
      names += (names.empty() ? "" : "|") + entry.path().filename().string();
  }
  ASSERT_FALSE(names.empty());
  const std::regex forbidden("\\b(" + names + ")\\b");
  expect_none(breaches("core", forbidden));
  expect_none(breaches("sdk", forbidden));
}

TEST(Tree, PluginsIncludeOnlyTheirOwnFolderAndTheSdk) {
  for (const auto& entry : fs::directory_iterator(source() / "plugins")) {
    if (!entry.is_directory()) continue;
    const std::string name = entry.path().filename().string();
    expect_none(
        breaches("plugins/" + name,
                 std::regex(R"rx(#include\s+"(core/|tests/|plugins/(?!)rx" + name + "/))")));
  }
}

TEST(Tree, NoFileSeesBothLibTorchAndSpdlog) {
  for (const auto& entry : fs::recursive_directory_iterator(source() / "core")) {
    if (!entry.is_regular_file()) continue;
    std::ifstream in(entry.path());
    const std::string text((std::istreambuf_iterator<char>(in)), {});
    const bool torch = std::regex_search(text, std::regex(R"(#include\s+[<"](ATen|torch|c10)/)"));
    const bool spdlog = std::regex_search(text, std::regex(R"(#include\s+[<"](spdlog|fmt)/)"));
    EXPECT_FALSE(torch && spdlog) << entry.path();
  }
}

TEST(Tree, TheTourOfTheReadmeNamesFilesThatExist) {
  std::ifstream in(source() / "README.md");
  const std::string text((std::istreambuf_iterator<char>(in)), {});
  const std::regex step(R"(\n[1-9]\. `([^`]+)`)");
  int count = 0;
  for (std::sregex_iterator it(text.begin(), text.end(), step), end; it != end; ++it, ++count) {
    EXPECT_TRUE(fs::exists(source() / (*it)[1].str())) << (*it)[1];
  }
  EXPECT_EQ(count, 7);
}

}  // namespace
