#include "core/comm/divergence.hpp"

#include <c10/core/ScalarType.h>
#include <gtest/gtest.h>

namespace yoke {
namespace {

Signature gather(int64_t count) {
  return {Collective::kAllGather, static_cast<int32_t>(c10::kFloat), count, 0, 0};
}

History of(std::vector<int64_t> counts) {
  History history;
  for (const int64_t count : counts) {
    Signature s = gather(count);
    history.add(s);
  }
  return history;
}

TEST(Fields, SurviveJoiningWhateverTheyContain) {
  const std::vector<std::string> fields{"", "a", std::string("\0x\0", 3), std::string(5000, 'y')};
  EXPECT_EQ(split_fields(join_fields(fields)), fields);
}

TEST(History, HashTellsContentAndOrderApart) {
  EXPECT_EQ(of({1, 2, 3}).hash(), of({1, 2, 3}).hash());
  EXPECT_NE(of({1, 2, 3}).hash(), of({1, 3, 2}).hash());
  EXPECT_NE(of({1, 2}).hash(), of({1, 2, 2}).hash());
  History other;
  Signature s = gather(1);
  s.dtype = static_cast<int32_t>(c10::kDouble);
  other.add(s);
  EXPECT_NE(of({1}).hash(), other.hash());
}

TEST(History, KeepsTheLatestInOrder) {
  History history;
  for (uint64_t i = 1; i <= History::kKept + 10; ++i) {
    Signature s = gather(static_cast<int64_t>(i));
    history.add(s);
    EXPECT_EQ(s.sequence, i);
  }
  const auto latest = history.latest();
  ASSERT_EQ(latest.size(), History::kKept);
  for (size_t i = 0; i < latest.size(); ++i) EXPECT_EQ(latest[i].sequence, i + 11);
}

// One text per rank of a mesh with two shards and two tensor-parallel ranks.
const Mesh kMesh({1, 1, 2, 1, 2});
constexpr uint32_t kShard = YOKE_AXIS_BIT(YOKE_DP_SHARD);

std::string told(const History& history) {
  return pack_histories({{"dp_shard (unshard)", kShard, history}});
}

TEST(DifferingHistory, IsNoneWhenTheMembersOfEachCommunicatorAgree) {
  // Ranks 0 and 2 share a communicator, and so do 1 and 3; the two may do different things.
  const auto a = told(of({1, 2})), b = told(of({3}));
  EXPECT_EQ(differing_history({a, b, a, b}, kMesh), std::nullopt);
}

TEST(DifferingHistory, NamesTheFirstDifferentCollective) {
  const auto a = told(of({1, 2, 3, 4})), b = told(of({1, 2, 9, 8}));
  EXPECT_EQ(differing_history({a, a, a, b}, kMesh),
            "the collectives of dp_shard (unshard) differ: rank 1 issues all_gather of 3 x fp32 as "
            "collective 3, but "
            "rank 3 issues all_gather of 9 x fp32 as collective 3");
}

TEST(DifferingHistory, NamesTheCollectiveThatOneRankDidNotIssue) {
  EXPECT_EQ(differing_history({told(of({1, 2, 3})), told(of({1})), told(of({1, 2})), told(of({1}))},
                              kMesh),
            "the collectives of dp_shard (unshard) differ: rank 0 has issued 3 collectives, rank 2 "
            "2; rank 0 went on "
            "with all_gather of 3 x fp32 as collective 3");
}

TEST(DifferingHistory, SaysSoWhenTheDifferenceIsForgotten) {
  std::vector<int64_t> one(History::kKept + 1, 5), other = one;
  other[0] = 6;
  const auto a = told(of(one)), b = told(of(other));
  EXPECT_EQ(differing_history({a, a, b, a}, kMesh),
            "the collectives of dp_shard (unshard) differ: rank 0 and rank 2 differ before the "
            "last 256 collectives");
}

}  // namespace
}  // namespace yoke
