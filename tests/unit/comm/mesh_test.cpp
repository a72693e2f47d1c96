#include "core/comm/mesh.hpp"

#include <gtest/gtest.h>

#include <set>

#include "yoke/error.hpp"

namespace yoke {
namespace {

// Returns the coordinates of all ranks by counting up; the last axis varies fastest.
std::vector<std::array<int32_t, YOKE_NUM_AXES>> counted(const Mesh::Degrees& d) {
  std::vector<std::array<int32_t, YOKE_NUM_AXES>> all;
  for (int a = 0; a < d[0]; ++a)
    for (int b = 0; b < d[1]; ++b)
      for (int c = 0; c < d[2]; ++c)
        for (int e = 0; e < d[3]; ++e)
          for (int f = 0; f < d[4]; ++f) all.push_back({a, b, c, e, f});
  return all;
}

const Mesh::Degrees kMeshes[] = {
    {1, 1, 1, 1, 1}, {1, 1, 2, 1, 1}, {2, 3, 1, 2, 2}, {1, 2, 4, 1, 2}, {3, 1, 2, 2, 1}};

TEST(Mesh, NumbersRanksWithTheLastAxisFastest) {
  for (const auto& degrees : kMeshes) {
    const Mesh mesh(degrees);
    const auto all = counted(degrees);
    ASSERT_EQ(static_cast<size_t>(mesh.size()), all.size());
    for (int32_t rank = 0; rank < mesh.size(); ++rank) {
      for (int axis = 0; axis < YOKE_NUM_AXES; ++axis)
        EXPECT_EQ(mesh.coordinate(rank, axis), all[rank][axis]);
      EXPECT_EQ(mesh.data_rank(rank),
                all[rank][YOKE_DP_REPLICATE] * degrees[YOKE_DP_SHARD] + all[rank][YOKE_DP_SHARD]);
    }
    EXPECT_EQ(mesh.data_ranks(), degrees[YOKE_DP_REPLICATE] * degrees[YOKE_DP_SHARD]);
  }
}

TEST(Mesh, PeersDifferOnlyInTheGivenAxes) {
  for (const auto& degrees : kMeshes) {
    const Mesh mesh(degrees);
    const auto all = counted(degrees);
    for (uint32_t axes = 0; axes <= kKnownAxes; ++axes) {
      for (int32_t rank = 0; rank < mesh.size(); ++rank) {
        std::vector<int32_t> expected;
        for (int32_t other = 0; other < mesh.size(); ++other) {
          bool peer = true;
          for (int axis = 0; axis < YOKE_NUM_AXES; ++axis) {
            peer &= (axes & YOKE_AXIS_BIT(axis)) != 0 || all[other][axis] == all[rank][axis];
          }
          if (peer) expected.push_back(other);
        }
        EXPECT_EQ(mesh.peers(rank, axes), expected);
      }
    }
  }
}

TEST(Mesh, RefusesADegreeBelowOneAndAWorldTooLarge) {
  try {
    Mesh({1, 1, 0, 1, 1});
    FAIL();
  } catch (const Error& e) {
    EXPECT_EQ(e.code(), YOKE_INVALID_ARGUMENT);
    EXPECT_STREQ(e.what(), "the degree of axis dp_shard is 0; it must be at least 1");
  }
  EXPECT_THROW(Mesh({1, 65536, 65536, 1, 1}), Error);
}

TEST(AxesName, JoinsTheAxes) {
  EXPECT_EQ(axes_name(YOKE_AXIS_BIT(YOKE_DP_SHARD)), "dp_shard");
  EXPECT_EQ(axes_name(YOKE_AXIS_BIT(YOKE_DP_SHARD) | YOKE_AXIS_BIT(YOKE_DP_REPLICATE)),
            "dp_replicate+dp_shard");
  EXPECT_EQ(axes_name(YOKE_ALL_AXES), "world");
}

}  // namespace
}  // namespace yoke
