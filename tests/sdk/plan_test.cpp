// Checks the functions of yoke/plan.h and yoke/plan.hpp against slow, simple definitions.
#include "yoke/plan.hpp"

#include <gtest/gtest.h>

#include <cstdint>
#include <string>
#include <vector>

namespace yoke {
namespace {

std::vector<int64_t> plain_divisors(int64_t n) {
  std::vector<int64_t> found;
  for (int64_t d = 1; d <= n; ++d)
    if (n % d == 0) found.push_back(d);
  return found;
}

TEST(Plan, NamesEveryAxisAndItsKey) {
  EXPECT_STREQ(yoke_axis_name(YOKE_PP), "pp");
  EXPECT_STREQ(yoke_axis_name(YOKE_DP_REPLICATE), "dp_replicate");
  EXPECT_STREQ(yoke_axis_name(YOKE_DP_SHARD), "dp_shard");
  EXPECT_STREQ(yoke_axis_name(YOKE_CP), "cp");
  EXPECT_STREQ(yoke_axis_name(YOKE_TP), "tp");
  EXPECT_STREQ(yoke_degree_key(YOKE_PP), "pp_degree");
  EXPECT_STREQ(yoke_degree_key(YOKE_DP_REPLICATE), "dp_degree");
  EXPECT_STREQ(yoke_degree_key(YOKE_DP_SHARD), "dp_shards");
  EXPECT_STREQ(yoke_degree_key(YOKE_CP), "cp_degree");
  EXPECT_STREQ(yoke_degree_key(YOKE_TP), "tp_degree");
}

TEST(Plan, MultipliesTheDegreesWithoutOverflow) {
  const int32_t some[] = {1, 2, 3, 0, 4}, none[] = {0, 0, 0, 0, 0};
  EXPECT_EQ(yoke_degree_product(some), 24) << "an unset degree counts as 1";
  EXPECT_EQ(yoke_degree_product(none), 1);
  const int32_t large[] = {1, 1 << 30, 1 << 30, 1, 1}, huge[] = {1, 1 << 30, 1 << 30, 8, 1};
  EXPECT_EQ(yoke_degree_product(large), int64_t{1} << 60);
  EXPECT_EQ(yoke_degree_product(huge), INT64_MAX);
}

TEST(Plan, DivisorsEqualTheirDefinition) {
  for (int64_t n = 0; n <= 400; ++n) ASSERT_EQ(divisors(n), plain_divisors(n)) << n;
  EXPECT_EQ(divisors(48, 6), (std::vector<int64_t>{1, 2, 3, 4, 6}));
  // A prime that is too large for a loop over all numbers.
  EXPECT_EQ(divisors(2'147'483'647), (std::vector<int64_t>{1, 2'147'483'647}));
}

TEST(Plan, NearestDivisorsEnclose) {
  for (int64_t n = 1; n <= 60; ++n) {
    for (int64_t d = 1; d <= 70; ++d) {
      int64_t below = 0, above = 0;
      for (const int64_t k : plain_divisors(n)) {
        if (k <= d) below = k;
        if (k >= d && above == 0) above = k;
      }
      const YokeNearest nearest = yoke_nearest_divisors(n, d);
      ASSERT_EQ(nearest.below, below) << d << " in " << n;
      ASSERT_EQ(nearest.above, above) << d << " in " << n;
    }
  }
}

TEST(Plan, TextsOfTheNearestValues) {
  EXPECT_EQ(nearest_text(yoke_nearest_divisors(12, 5)), "4 or 6");
  EXPECT_EQ(nearest_text(yoke_nearest_divisors(12, 4)), "4");
  EXPECT_EQ(nearest_text(yoke_nearest_divisors(12, 100)), "12");
  EXPECT_EQ(nearest_text(yoke_nearest_multiples(10, 4)), "8 or 12");
  EXPECT_EQ(nearest_text(yoke_nearest_multiples(3, 4)), "4");
  EXPECT_EQ(list_text({1, 2, 4}), "1, 2, 4");
  EXPECT_EQ(list_text({}), "");
}

TEST(Plan, GradientsAreReducedInFp32UnlessTheModelIsFp64) {
  EXPECT_EQ(yoke_default_reduce_dtype(YOKE_F64), YOKE_F64);
  for (const int32_t dtype : {YOKE_F32, YOKE_BF16, YOKE_F16})
    EXPECT_EQ(yoke_default_reduce_dtype(dtype), YOKE_F32);
}

}  // namespace
}  // namespace yoke
