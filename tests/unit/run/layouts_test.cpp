#include "core/run/layouts.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace yoke {
namespace {

using ::testing::IsEmpty;
using ::testing::UnorderedElementsAreArray;

constexpr int32_t kAll = (1 << YOKE_NUM_AXES) - 1;

// The oracle: all five degrees from 1 to the number of ranks.
std::vector<Layout> by_trying_all(int32_t world, const Degrees& given, int32_t axes) {
  std::vector<Layout> found;
  Layout l{};
  const auto fits = [&](size_t axis) {
    if (given[axis]) return l[axis] == *given[axis];
    return l[axis] == 1 || (axes >> axis & 1) != 0;
  };
  for (l[0] = 1; l[0] <= world; ++l[0])
    for (l[1] = 1; l[1] <= world; ++l[1])
      for (l[2] = 1; l[2] <= world; ++l[2])
        for (l[3] = 1; l[3] <= world; ++l[3])
          for (l[4] = 1; l[4] <= world; ++l[4])
            if (l[0] * l[1] * l[2] * l[3] * l[4] == world && fits(0) && fits(1) && fits(2) &&
                fits(3) && fits(4))
              found.push_back(l);
  return found;
}

TEST(LayoutsOf, AreAllWaysToDivideTheRanks) {
  for (const int32_t world : {1, 2, 6, 7, 8, 12})
    EXPECT_THAT(layouts_of(world, {}, kAll),
                UnorderedElementsAreArray(by_trying_all(world, {}, kAll)))
        << world;
  EXPECT_EQ(layouts_of(64, {}, kAll).size(), 210u);
}

TEST(LayoutsOf, KeepGivenDegreesAndLeaveOutAxesThatTheBackendLacks) {
  Degrees given;
  given.tp = 2;
  given.dp_replicate = 1;
  const int32_t axes = YOKE_AXIS_BIT(YOKE_DP_REPLICATE) | YOKE_AXIS_BIT(YOKE_DP_SHARD);
  for (const int32_t world : {2, 8, 12}) {
    EXPECT_THAT(layouts_of(world, given, kAll),
                UnorderedElementsAreArray(by_trying_all(world, given, kAll)));
    EXPECT_THAT(layouts_of(world, given, axes),
                UnorderedElementsAreArray(by_trying_all(world, given, axes)));
  }
  EXPECT_THAT(layouts_of(3, given, kAll), IsEmpty());
}

}  // namespace
}  // namespace yoke
