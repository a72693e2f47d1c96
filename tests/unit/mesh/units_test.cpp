#include "sdk/mesh/schedule/units.hpp"

#include <gtest/gtest.h>

#include <set>

#include "tests/unit/mesh/random_plan.hpp"

namespace yoke::mesh {
namespace {

using testing::Dice;
using testing::kItemSize;
using testing::random_model;

// Returns n blocks of one parameter with `numel` elements.
ModelSpec chain(int n, int64_t numel) {
  ModelSpec model;
  for (int i = 0; i < n; ++i) {
    model.params.push_back({numel});
    model.blocks.push_back({i});
  }
  return model;
}

TEST(Units, ConsecutiveBlocksMergeUntilTheyHoldTheBytes) {
  const UnitMap map = make_units(chain(6, 100), 800, 4);
  ASSERT_EQ(map.units.size(), 3u);
  EXPECT_EQ(map.units[0].params, (std::vector<int>{0, 1}));
  EXPECT_EQ(map.units[2].params, (std::vector<int>{4, 5}));
  EXPECT_EQ(map.of_block[3], (std::vector<int>{1}));
}

TEST(Units, ASmallRestJoinsTheBlocksBefore) {
  EXPECT_EQ(make_units(chain(4, 100), 1200, 4).units.size(), 1u);  // last 400 bytes are merged
  EXPECT_EQ(make_units(chain(5, 100), 1200, 4).units.size(), 2u);  // last 800 bytes are a unit
}

TEST(Units, OneByteMakesEveryBlockAUnit) {
  EXPECT_EQ(make_units(chain(5, 3), 1, 4).units.size(), 5u);
}

TEST(Units, AUnitEndsWhereAStageEnds) {
  const UnitMap two = make_units(chain(6, 100), 1 << 20, 4, {1, 5});
  ASSERT_EQ(two.units.size(), 2u);
  EXPECT_EQ(two.units[0].params, (std::vector<int>{0, 1}));
  EXPECT_EQ(make_units(chain(4, 100), 1200, 4, {2, 3}).units.size(), 2u) << "a small rest stays";
}

TEST(Units, ATiedParameterIsAUnitOfItsOwnThatBothItsBlocksNeed) {
  ModelSpec model = chain(4, 100);
  model.blocks[3].push_back(0);  // the last block uses the first block's parameter too
  const UnitMap map = make_units(model, 1, 4);
  ASSERT_EQ(map.units.size(), 4u);
  EXPECT_EQ(map.units[0].params, (std::vector<int>{0}));
  EXPECT_EQ(map.of_block[0], (std::vector<int>{0}));
  EXPECT_EQ(map.of_block[3], (std::vector<int>{0, 3}));
}

TEST(Units, ATiedParameterInsideOneUnitStaysThere) {
  ModelSpec model = chain(3, 100);
  model.blocks[2].push_back(0);
  EXPECT_EQ(make_units(model, 1 << 20, 4).units.size(), 1u);
}

TEST(Units, FrozenParametersAreAUnitOfTheirOwn) {
  ModelSpec model = chain(2, 100);
  model.params.push_back({50, false});
  model.blocks[0].push_back(2);
  const UnitMap map = make_units(model, 1 << 20, 4);
  ASSERT_EQ(map.units.size(), 2u);
  EXPECT_TRUE(map.units[0].trainable);
  EXPECT_FALSE(map.units[1].trainable);
  EXPECT_EQ(map.units[1].params, (std::vector<int>{2}));
}

TEST(Units, ParametersThatAreGatheredInFp8AreAUnitOfTheirOwn) {
  ModelSpec model = chain(3, 100);
  for (int b = 0; b < 3; ++b) {
    model.params.push_back({100});
    model.params.back().fp8 = true;
    model.blocks[b].push_back(3 + b);
  }
  const UnitMap map = make_units(model, 1600, 4);  // two blocks of two parameters each
  ASSERT_EQ(map.units.size(), 4u);
  EXPECT_EQ(map.units[0].params, (std::vector<int>{0, 1}));
  EXPECT_FALSE(map.units[0].fp8);
  EXPECT_EQ(map.units[1].params, (std::vector<int>{3, 4}));
  EXPECT_TRUE(map.units[1].fp8);
  EXPECT_EQ(map.of_block[1], (std::vector<int>{0, 1}));
  EXPECT_EQ(map.of_block[2], (std::vector<int>{2, 3}));
}

TEST(Units, ParametersWithWeightDecayComeFirst) {
  ModelSpec model = chain(3, 10);
  model.params[0].decay = false;
  EXPECT_EQ(make_units(model, 1 << 20, 4).units[0].params, (std::vector<int>{1, 2, 0}));
}

TEST(Units, EveryParameterHasOneUnitAndEveryBlockFindsItsParameters) {
  for (unsigned seed = 0; seed < 500; ++seed) {
    SCOPED_TRACE(seed);
    Dice dice(seed);
    const ModelSpec model = random_model(dice);
    const UnitMap map = make_units(model, dice.roll(1, 3000), kItemSize);
    std::vector<int> owner(model.params.size(), -1);
    for (size_t u = 0; u < map.units.size(); ++u) {
      for (int p : map.units[u].params) {
        EXPECT_EQ(owner[p], -1);
        owner[p] = static_cast<int>(u);
        EXPECT_EQ(model.params[p].trainable, map.units[u].trainable);
        EXPECT_EQ(model.params[p].fp8, map.units[u].fp8);
      }
    }
    for (size_t b = 0; b < model.blocks.size(); ++b) {
      std::set<int> needed;
      for (int p : model.blocks[b]) needed.insert(owner[p]);
      EXPECT_EQ(map.of_block[b], std::vector<int>(needed.begin(), needed.end()));
    }
  }
}

}  // namespace
}  // namespace yoke::mesh
