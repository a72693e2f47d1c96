#include "sdk/mesh/schedule/flat_layout.hpp"

#include <gtest/gtest.h>

#include "tests/unit/mesh/random_plan.hpp"

namespace yoke::mesh {
namespace {

using testing::Dice;
using testing::kItemSize;
using testing::random_model;

TEST(FlatLayout, OneParameterIsCutIntoAlignedRanges) {
  const ModelSpec model{{{100}}, {{0}}};
  const FlatLayout layout(model, {{0}, true}, 3, 4);
  EXPECT_EQ(layout.shard_numel(), 48);  // 100 elements over 3 ranks, in cache lines of 16 elements
  EXPECT_EQ(layout.numel(), 144);
  const ShardPiece second = layout.piece(layout.slots()[0], 1);
  EXPECT_EQ(second.begin, 48);
  EXPECT_EQ(second.count, 48);
  EXPECT_EQ(layout.piece(layout.slots()[0], 2).count, 4);
}

TEST(FlatLayout, MoreRanksThanElementsLeaveShardsEmpty) {
  const ModelSpec model{{{5}}, {{0}}};
  const FlatLayout layout(model, {{0}, true}, 4, 8);
  EXPECT_EQ(layout.piece(layout.slots()[0], 0).count, 5);
  EXPECT_EQ(layout.piece(layout.slots()[0], 3).count, 0);
}

TEST(FlatLayout, ParametersThatAreUpdatedAlikeMakeASpan) {
  const ModelSpec model{{{20, true, true, false}, {7, true, true, false}, {5, true, false, true}},
                        {{0, 1, 2}}};
  const auto spans = FlatLayout(model, {{0, 1, 2}, true}, 1, 4).spans();
  ASSERT_EQ(spans.size(), 2u);
  EXPECT_EQ(spans[0].begin, 0);
  EXPECT_EQ(spans[0].count, 48);
  EXPECT_TRUE(spans[0].decay && !spans[0].tp_replicated);
  EXPECT_EQ(spans[1].begin, 48);
  EXPECT_EQ(spans[1].count, 16);
  EXPECT_TRUE(!spans[1].decay && spans[1].tp_replicated);
}

TEST(FlatLayout, ShardsOfOneByteForEachElementBeginAtACacheLine) {
  const ModelSpec model{{{20}, {70}}, {{0, 1}}};
  const Unit unit{{0, 1}, true, true};
  const FlatLayout layout(model, unit, 2, 4);
  EXPECT_EQ(layout.slots()[1].offset, 64);
  EXPECT_EQ(layout.shard_numel(), 128);
}

// The test visits every element of every parameter through the pieces of all shards.
TEST(FlatLayout, ThePiecesOfAllShardsTileEveryParameterOnce) {
  for (unsigned seed = 0; seed < 300; ++seed) {
    SCOPED_TRACE(seed);
    Dice dice(seed);
    const ModelSpec model = random_model(dice);
    const int shards = dice.roll(1, 7);
    for (const Unit& unit : make_units(model, dice.roll(1, 3000), kItemSize).units) {
      const FlatLayout layout(model, unit, shards, kItemSize);
      EXPECT_EQ(layout.shard_numel() * (unit.fp8 ? 1 : kItemSize) % kAlignBytes, 0);
      for (const FlatLayout::Slot& slot : layout.slots()) {
        int64_t next = 0;
        for (int s = 0; s < shards; ++s) {
          const ShardPiece piece = layout.piece(slot, s);
          if (piece.count == 0) continue;
          EXPECT_EQ(piece.begin, next);
          EXPECT_EQ(s * layout.shard_numel() + piece.offset, slot.offset + piece.begin);
          next += piece.count;
        }
        EXPECT_EQ(next, model.params[slot.param].numel);
      }
    }
  }
}

}  // namespace
}  // namespace yoke::mesh
