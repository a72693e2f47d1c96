// Each rule finds a violation that the test writes into a small tree, and names the file.
#include "tests/unit/tree/rules.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>

#include "tests/support/temp_folder.hpp"

namespace yoke::tree {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

class PlantedTree : public ::testing::Test {
 protected:
  void write(const std::string& file, const std::string& text) { folder_.write(file, text); }
  Path root() const { return folder_.path(); }

 private:
  yoke::testing::TempFolder folder_;
};

TEST_F(PlantedTree, ACircleBetweenFoldersIsFound) {
  write("core/base/a.hpp", "#include \"core/run/b.hpp\"\n");
  write("core/run/b.hpp", "#include \"core/base/a.hpp\"\n");
  EXPECT_THAT(upward_includes(root()),
              ElementsAre(HasSubstr("core/base/a.hpp:1: base/ may not include run/")));
  EXPECT_EQ(folder_arrows(root()).size(), 2u);
}

TEST_F(PlantedTree, AFolderWithoutAPlaceIsFound) {
  write("core/attic/a.hpp", "#include \"core/base/b.hpp\"\n");
  EXPECT_THAT(upward_includes(root()), ElementsAre(HasSubstr("core/attic/a.hpp:1")));
}

TEST_F(PlantedTree, DownwardIncludesAreAllowed) {
  write("core/worker/a.cpp", "#include \"core/train.hpp\"\n#include \"core/base/b.hpp\"\n");
  write("core/main.cpp", "#include \"core/cli/command.hpp\"\n");
  EXPECT_THAT(upward_includes(root()), IsEmpty());
  EXPECT_EQ(folder_arrows(root()).size(), 3u);
}

TEST_F(PlantedTree, AnAvoidedWordIsFound) {
  write("CONTRIBUTING.md",
        "## Avoided words\n| avoid | write |\n|---|---|\n| `patience` | timeout |\n\n## Tests\n| "
        "`x` | |\n");
  write("core/base/a.hpp", "// The x of a wait.\n// Patience of a wait.\n");
  write("docs/a.md", "impatience is another word\n");
  EXPECT_THAT(avoided_words(root()), ElementsAre(HasSubstr("core/base/a.hpp:2: 'Patience'")));
}

TEST_F(PlantedTree, ATrailingCommentWithoutANounIsFound) {
  write("core/base/a.hpp",
        "int a;  // of the run file\nint b;  // line of the run file\n// for all\nint c; /* in C "
        "*/\n");
  EXPECT_THAT(trailing_fragments(root()),
              ElementsAre("core/base/a.hpp:1: int a;  // of the run file",
                          "core/base/a.hpp:4: int c; /* in C */"));
}

TEST_F(PlantedTree, AWideCommentIsFound) {
  const std::string text(97, 'x');
  write("core/base/a.hpp",
        "// " + text + "\n// x" + text + "\n/*\n * y" + text + "\n */\nint " + text + "x = 0;\n");
  EXPECT_THAT(
      wide_comments(root()),
      ElementsAre(HasSubstr("core/base/a.hpp:2: // xx"), HasSubstr("core/base/a.hpp:4:  * yx")));
}

TEST_F(PlantedTree, ALostTableOfAvoidedWordsIsFound) {
  write("CONTRIBUTING.md", "## Words\n");
  EXPECT_THAT(avoided_words(root()), ElementsAre(HasSubstr("CONTRIBUTING.md")));
}

TEST_F(PlantedTree, AMissingDocumentIsFound) {
  write("core/base/README.md", "");
  write("core/base/a.hpp", "// See README.md and nothing else.\n// See DESIGN.md.\n");
  EXPECT_THAT(missing_documents(root()), ElementsAre(HasSubstr("core/base/a.hpp:2: DESIGN.md")));
}

TEST_F(PlantedTree, ALongFileIsFound) {
  write("core/base/short.cpp", std::string(kMaxFileLines, '\n'));
  write("core/base/long.cpp", std::string(kMaxFileLines + 1, '\n'));
  EXPECT_THAT(long_files(root()), ElementsAre(HasSubstr("core/base/long.cpp: 401 lines")));
}

TEST_F(PlantedTree, LargeFunctionsAreFound) {
  if (!has_program("ctags")) GTEST_SKIP() << "no ctags";
  const std::string many = "(int a, int b, int c, int d, int e, int f, int g)";
  write("core/base/a.cpp",
        "int long_one() {\n" + std::string(kMaxFunctionLines - 1, '\n') + "return 0;\n}\n" +
            "int wide" + many + " { return a; }\n" +
            "int fine(std::map<int, int> a) { return 0; }\n");
  write("core/kernels/b.cpp", "int kernel" + many + " { return a; }\n");
  EXPECT_THAT(large_functions(root()),
              ::testing::UnorderedElementsAre(HasSubstr("long_one has 62 lines"),
                                              HasSubstr("wide has 7 parameters")));
}

TEST_F(PlantedTree, AnUnformattedFileIsFound) {
  if (!has_program("clang-format")) GTEST_SKIP() << "no clang-format";
  write(".clang-format", "BasedOnStyle: Google\n");
  write("core/base/good.cpp", "int a;\n");
  write("core/base/bad.cpp", "int  a ;\n");
  EXPECT_THAT(unformatted_files(root()), ElementsAre(HasSubstr("core/base/bad.cpp:1")));
}

}  // namespace
}  // namespace yoke::tree
