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

// The mesh of the tests below has two shards and two tensor-parallel ranks. Ranks 0 and 2 share a
// communicator, and so do ranks 1 and 3.
const Mesh kMesh({1, 1, 2, 1, 2});
constexpr uint32_t kShard = YOKE_AXIS_BIT(YOKE_DP_SHARD);

std::string packed(const History& history) {
  return pack_histories({{"dp_shard (unshard)", kShard, history}});
}

TEST(DifferingHistory, IsNoneWhenTheMembersOfEachCommunicatorAgree) {
  const auto a = packed(of({1, 2})), b = packed(of({3}));
  EXPECT_EQ(differing_history({a, b, a, b}, kMesh), std::nullopt);
}

TEST(DifferingHistory, NamesTheFirstDifferentCollective) {
  const auto a = packed(of({1, 2, 3, 4})), b = packed(of({1, 2, 9, 8}));
  EXPECT_EQ(differing_history({a, a, a, b}, kMesh),
            "the collectives of dp_shard (unshard) differ: rank 1 issues all_gather of 3 x fp32 as "
            "collective 3, but rank 3 issues all_gather of 9 x fp32 as collective 3");
}

TEST(DifferingHistory, NamesTheCollectiveThatOneRankDidNotIssue) {
  EXPECT_EQ(
      differing_history(
          {packed(of({1, 2, 3})), packed(of({1})), packed(of({1, 2})), packed(of({1}))}, kMesh),
      "the collectives of dp_shard (unshard) differ: rank 0 has issued 3 collectives, rank 2 "
      "2; rank 0 continued with all_gather of 3 x fp32 as collective 3");
}

// Two sides of the messages from rank 0 to rank 2: one text per rank.
std::vector<std::string> exchanged(const std::vector<int64_t>& sent,
                                   const std::vector<int64_t>& received) {
  const auto side = [](Collective op, const std::vector<int64_t>& counts) {
    History history;
    for (const int64_t count : counts) {
      Signature s{op, static_cast<int32_t>(c10::kFloat), count, 3, 0};
      history.add(s);
    }
    return pack_histories({{"dp_shard (x) from rank 0 to rank 2", kShard, history, Link{0, 2}}});
  };
  return {sent.empty() ? "" : side(Collective::kSend, sent),
          "",
          received.empty() ? "" : side(Collective::kRecv, received),
          ""};
}

TEST(DifferingHistory, ComparesTheTwoSidesOfMessages) {
  EXPECT_EQ(differing_history(exchanged({1, 2, 3}, {1, 2, 3}), kMesh), std::nullopt);
  EXPECT_EQ(differing_history(exchanged({1, 2, 3}, {1, 9, 3}), kMesh),
            "the messages of dp_shard (x) from rank 0 to rank 2 differ: rank 0 issues send (tag 3) "
            "of 2 x fp32 as message 2, but rank 2 issues recv (tag 3) of 9 x fp32 as message 2");
  EXPECT_EQ(differing_history(exchanged({}, {8}), kMesh),
            "the messages of dp_shard (x) from rank 0 to rank 2 differ: rank 0 has issued 0 "
            "messages, rank 2 1; rank 2 continued with recv (tag 3) of 8 x fp32 as message 1");
  EXPECT_EQ(differing_history(exchanged({8}, {}), kMesh),
            "the messages of dp_shard (x) from rank 0 to rank 2 differ: rank 0 has issued 1 "
            "messages, rank 2 0; rank 0 continued with send (tag 3) of 8 x fp32 as message 1");
}

TEST(DifferingHistory, SaysSoWhenTheDifferenceIsForgotten) {
  std::vector<int64_t> one(History::kKept + 1, 5), other = one;
  other[0] = 6;
  const auto a = packed(of(one)), b = packed(of(other));
  EXPECT_EQ(differing_history({a, a, b, a}, kMesh),
            "the collectives of dp_shard (unshard) differ: rank 0 and rank 2 differ before the "
            "last 256 collectives");
}

}  // namespace
}  // namespace yoke
