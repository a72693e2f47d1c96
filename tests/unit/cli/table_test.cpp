#include "core/cli/table.hpp"

#include <gtest/gtest.h>

#include "yoke/error.hpp"

namespace yoke {
namespace {

TEST(Table, AlignsColumnsAndPadsNoLineAtItsEnd) {
  Table table({"name", "stages", "path"});
  table.add({"ox", "0", "/a"});
  table.add({"plough", "", ""});
  EXPECT_EQ(table.text(),
            "name    stages  path\n"
            "ox      0       /a\n"
            "plough\n");
}

TEST(Table, CountsCharactersAndNotBytes) {
  Table table({"a", "b"});
  table.add({"\u00e4\u00f6", "1"});
  table.add({"xyz", "2"});
  EXPECT_EQ(table.text(), "a    b\n\u00e4\u00f6   1\nxyz  2\n");
}

TEST(Table, IsEmptyWithoutRows) {
  Table table({"a"});
  EXPECT_TRUE(table.empty());
  table.add({"1"});
  EXPECT_FALSE(table.empty());
}

TEST(Table, RefusesARowOfAnotherLength) {
  Table table({"a", "b"});
  EXPECT_THROW(table.add({"1"}), Error);
}

}  // namespace
}  // namespace yoke
