#include "core/base/text.hpp"

#include <gtest/gtest.h>

namespace yoke {
namespace {

TEST(WithCommas, GroupsTheDigitsByThree) {
  EXPECT_EQ(with_commas(999), "999");
  EXPECT_EQ(with_commas(-1234567.4), "-1,234,567");
}

TEST(BytesText, TakesTheLargestUnitThatFits) {
  EXPECT_EQ(bytes_text(0), "0 B");
  EXPECT_EQ(bytes_text(1023), "1023 B");
  EXPECT_EQ(bytes_text(3 << 19), "1.5 MiB");
  EXPECT_EQ(bytes_text(uint64_t{5} << 40), "5.0 TiB");
}

TEST(DurationText, HasTwoUnitsAtMost) {
  EXPECT_EQ(duration_text(0), "0s");
  EXPECT_EQ(duration_text(41.2), "42s");
  EXPECT_EQ(duration_text(184), "3m 04s");
  EXPECT_EQ(duration_text(2 * 3600 + 5 * 60 + 59), "2h 05m");
  EXPECT_EQ(duration_text(3 * 86400 + 4 * 3600), "3d 04h");
}

}  // namespace
}  // namespace yoke
