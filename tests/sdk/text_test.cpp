#include "yoke/text.hpp"

#include <gtest/gtest.h>

#include <cstdint>
#include <limits>
#include <string>

namespace yoke {
namespace {

TEST(Concat, JoinsStringsCharactersAndNumbers) {
  const std::string name = "ptd";
  EXPECT_EQ(concat(name, std::string_view(": "), "rank ", 3, ' ', uint64_t{7}), "ptd: rank 3 7");
  EXPECT_EQ(concat(), "");
  EXPECT_EQ(concat(std::numeric_limits<int64_t>::min()), "-9223372036854775808");
}

TEST(Concat, WritesFloatingPointNumbersSoThatTheyReadBack) {
  EXPECT_EQ(concat(0.1, " ", 1e-6, " ", 2.0), "0.1 1e-06 2");
}

TEST(StringPrintf, ReturnsTextsOfAnyLength) {
  EXPECT_EQ(string_printf("%05d %.3g", 42, 0.12345), "00042 0.123");
  EXPECT_EQ(string_printf("%s", std::string(5000, 'x').c_str()).size(), 5000u);
  EXPECT_EQ(string_printf("%s", ""), "");
}

}  // namespace
}  // namespace yoke
