#include "core/base/content_sample.hpp"

#include <gtest/gtest.h>

#include "tests/support/temp_folder.hpp"

namespace yoke {
namespace {

using testing::TempFolder;

TEST(ContentSample, IsEqualForEqualContentsOnly) {
  const TempFolder folder;
  const std::string text(1000, 'x');
  const std::string first = content_sample(folder.write("a/file", text));
  EXPECT_EQ(first.substr(0, 19), "1000 bytes, sample ");
  EXPECT_EQ(content_sample(folder.write("b/file", text)), first);
  EXPECT_EQ(content_sample(folder / "a"), first);
  EXPECT_NE(content_sample(folder.write("c/file", text.substr(1) + "y")), first);
  EXPECT_NE(content_sample(folder.write("d/file", text + "x")), first);
}

TEST(ContentSample, OfALargeFileIncludesItsFirstAndLastBytes) {
  const TempFolder folder;
  std::string text(20 << 20, 'x');
  const std::string whole = content_sample(folder.write("file", text));
  text.front() = 'y';
  EXPECT_NE(content_sample(folder.write("first", text)), whole);
  text.front() = 'x';
  text.back() = 'y';
  EXPECT_NE(content_sample(folder.write("last", text)), whole);
}

TEST(ContentSample, OfManyFilesSeesTheirSizesAndSomeOfTheirContents) {
  const TempFolder folder;
  std::vector<std::string> files;
  for (int i = 0; i < 100; ++i) files.push_back(folder.write("f" + std::to_string(i), "abc"));
  const std::string first = content_sample(files);
  EXPECT_EQ(first, content_sample(files));
  folder.write("f99", "abcd");
  folder.write("f98", "ab");
  EXPECT_NE(content_sample(files), first) << "the sum of the sizes is the same";
  folder.write("f99", "abc");
  folder.write("f98", "abc");
  EXPECT_EQ(content_sample(files), first);
  folder.write("f0", "abd");
  EXPECT_NE(content_sample(files), first);
}

}  // namespace
}  // namespace yoke
