#include "core/data/source.hpp"

#include <gmock/gmock.h>

#include "tests/support/temp_folder.hpp"
#include "tests/unit/data/token_files.hpp"

namespace yoke {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using testing::TempFolder;

class SourceTest : public ::testing::Test {
 protected:
  SourceTest() {
    folder_.write("a/2.txt", "cd");
    folder_.write("a/1.txt", "ab");
    folder_.write("z.txt", "yz");
  }
  Source open(const std::vector<std::string>& entries) const {
    std::vector<std::string> paths;
    for (const std::string& entry : entries) paths.push_back(folder_ / entry);
    return open_source("data.path", paths, "auto", 0);
  }
  TempFolder folder_;
};

TEST_F(SourceTest, JoinsItsEntriesInTheirOrder) {
  const Source source = open({"z.txt", "a"});
  EXPECT_THAT(all_ids(*source.stream), ElementsAre('y', 'z', 'a', 'b', 'c', 'd'));
  EXPECT_THAT(source.files,
              ElementsAre(folder_ / "z.txt", folder_ / "a/1.txt", folder_ / "a/2.txt"));
  EXPECT_EQ(source.name, folder_ / "z.txt" + ", " + folder_ / "a");
  EXPECT_THAT(all_ids(*open({"a/[12].txt"}).stream), ElementsAre('a', 'b', 'c', 'd'));
}

TEST_F(SourceTest, ShortensItsName) {
  for (const char* name : {"1", "2", "3", "4", "5"}) folder_.write(name, "x");
  EXPECT_THAT(open({"1", "2", "3", "4", "5"}).name, ::testing::EndsWith("/3 and 2 more"));
}

TEST_F(SourceTest, RefusesAFileThatIsNamedTwice) {
  const Error e = error_of([&] { open({"a/*.txt", "z.txt", "a/1.txt"}); });
  EXPECT_EQ(e.code(), YOKE_INVALID_ARGUMENT);
  EXPECT_THAT(e.what(), HasSubstr("names the file \"" + folder_ / "a/1.txt" + "\" twice"));
}

TEST_F(SourceTest, RefusesAKeyThatIsNotSet) {
  EXPECT_EQ(error_of([&] { open({}); }).code(), YOKE_NOT_FOUND);
}

// Thousands of files share the ids that are checked at once, but each file is checked a little.
TEST_F(SourceTest, ChecksSomeIdsOfEveryFileAtOnce) {
  std::vector<std::string> names;
  for (int i = 0; i < 1100; ++i) {
    names.push_back("ids/" + std::to_string(i) + ".npy");
    folder_.write(names.back(), npy_file(npy_literal("<u2", 1), raw<uint16_t>({1})));
  }
  std::vector<uint16_t> late(1025, 1);
  late.back() = 50;
  folder_.write(names[7], npy_file(npy_literal("<u2", late.size()), raw(late)));
  const auto open_ids = [&] { return open_source("data.path", {folder_ / "ids"}, "auto", 50); };
  EXPECT_EQ(open_ids().stream->size(), 1099 + 1025);
  late[1023] = 50;
  folder_.write(names[7], npy_file(npy_literal("<u2", late.size()), raw(late)));
  EXPECT_THAT(error_of([&] { open_ids(); }).what(), HasSubstr("token 1023"));
}

}  // namespace
}  // namespace yoke
