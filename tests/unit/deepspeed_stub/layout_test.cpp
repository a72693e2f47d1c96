#include "plugins/deepspeed_stub/layout.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <map>

#include "tests/support/mock_model.hpp"

namespace yoke::deepspeed_stub {
namespace {

using ::testing::ElementsAre;

// Returns a model whose parameters have these numbers of elements: embed.weight 55, up 35, bias 7,
// scale 5, down 35 and gain 1. Bias and gain have no weight decay, and scale is frozen. The first
// and the last block use the embedding.
const ModelSpec& spec() {
  static const testing::MockModel model;
  static const ModelSpec spec(model.summary());
  return spec;
}

// Checks that each element of the trainable (or frozen) parameters is in exactly one piece of one
// rank.
template <class OwnedByRank>
void expect_tiled(int ranks, bool trainable, OwnedByRank owned) {
  std::map<std::pair<int64_t, int64_t>, int> covered;
  for (int r = 0; r < ranks; ++r) {
    const Owned mine = owned(r);
    for (const Piece& p : mine.pieces) {
      EXPECT_GT(p.count, 0);
      EXPECT_LE(p.offset + p.count, mine.size);
      EXPECT_EQ(p.offset + p.count <= mine.decay_end, spec().params[p.param].decay);
      for (int64_t i = 0; i < p.count; ++i) ++covered[{p.param, p.begin + i}];
    }
  }
  size_t elements = 0;
  for (const auto& param : spec().params)
    elements += param.trainable == trainable ? param.numel : 0;
  EXPECT_EQ(covered.size(), elements);
  for (const auto& [at, times] : covered) EXPECT_EQ(times, 1) << at.first << ", " << at.second;
}

TEST(FlatLayout, PadsToAMultipleOfTwiceTheRanks) {
  for (const auto& [ranks, size] : {std::pair{1, 134}, {2, 136}, {3, 138}, {4, 136}, {7, 140}}) {
    const FlatLayout layout(spec(), true, ranks);
    EXPECT_EQ(layout.size(), size) << ranks;  // 133 elements, padded
    EXPECT_EQ(layout.slice() * ranks, layout.size());
  }
}

TEST(FlatLayout, SlicesTileTheModelWhereverTheyCut) {
  for (const int ranks : {1, 2, 3, 4, 7}) {
    const FlatLayout layout(spec(), true, ranks);
    expect_tiled(ranks, true, [&](int r) {
      return layout.owned(r * layout.slice(), (r + 1) * layout.slice());
    });
  }
  const FlatLayout two(spec(), true, 2);
  EXPECT_EQ(two.owned(0, 68).pieces.size(), 2u);  // 55 + 13 of the 35: the cut goes through `up`
}

TEST(FlatLayout, BucketsCoverEverythingInBackwardOrder) {
  const FlatLayout layout(spec(), true, 2);
  const std::vector<Bucket> whole = layout.buckets(1000);
  ASSERT_EQ(whole.size(), 1u);
  EXPECT_EQ(whole[0].begin, 0);
  EXPECT_EQ(whole[0].end, layout.size());
  // Expected order: head.gain and the bias, then the matrices of the middle block, and last the
  // tied embedding.
  std::vector<std::vector<int64_t>> params;
  for (const Bucket& b : layout.buckets(35)) params.push_back(b.params);
  EXPECT_THAT(params,
              ElementsAre(ElementsAre(2, 5), ElementsAre(4), ElementsAre(1), ElementsAre(0)));
}

TEST(SliceLayout, EveryParameterIsPaddedToAMultipleOfTheRanks) {
  const SliceLayout layout(spec(), true, 4);
  EXPECT_EQ(layout.slice(0), 14);
  EXPECT_EQ(layout.slice(5), 1);
  EXPECT_EQ(layout.size(), 14 + 9 + 9 + 2 + 1);
}

TEST(SliceLayout, SlicesTileTheModel) {
  for (const int ranks : {1, 2, 3, 4, 7}) {
    for (const bool trainable : {true, false}) {
      const SliceLayout layout(spec(), trainable, ranks);
      expect_tiled(ranks, trainable, [&](int r) { return layout.owned(r); });
    }
  }
}

TEST(SliceLayout, BucketsAreCountedInElementsOfWholeParameters) {
  const SliceLayout layout(spec(), true, 2);
  std::vector<int64_t> lengths;
  for (const Bucket& b : layout.buckets(90)) lengths.push_back(b.end - b.begin);
  // The first bucket has down, bias and gain, the second one embedding and up.
  EXPECT_THAT(lengths, ElementsAre(18 + 4 + 1, 28 + 18));
}

}  // namespace
}  // namespace yoke::deepspeed_stub
