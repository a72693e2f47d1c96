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

}  // namespace
}  // namespace yoke
