#include "core/run/stage_costs.hpp"

#include <gtest/gtest.h>

namespace yoke {
namespace {

RankCosts rank_with(int64_t activations, int64_t saved, std::vector<int64_t> params) {
  RankCosts costs;
  costs.wrap.param_bytes = 100;
  costs.wrap.grad_bytes = -1;  // unknown
  costs.wrap.optimizer_bytes = 30;
  costs.wrap.unsharded_bytes = 4;
  costs.wrap.activation_bytes = activations;
  costs.wrap.axis_bytes[YOKE_PP] = 7;
  costs.saved_elements = saved;
  costs.params = std::move(params);
  return costs;
}

TEST(RankCosts, AreTheSameAfterBeingSent) {
  const RankCosts costs = rank_with(9, int64_t{1} << 40, {0, 3, 17});
  const RankCosts there = rank_costs_from_text(to_text(costs));
  EXPECT_EQ(to_text(there), to_text(costs));
  EXPECT_EQ(there.wrap.param_bytes, 100);
  EXPECT_EQ(there.wrap.grad_bytes, -1);
  EXPECT_EQ(there.wrap.optimizer_bytes, 30);
  EXPECT_EQ(there.wrap.unsharded_bytes, 4);
  EXPECT_EQ(there.wrap.activation_bytes, 9);
  EXPECT_EQ(there.wrap.axis_bytes[YOKE_PP], 7);
  EXPECT_EQ(there.saved_elements, int64_t{1} << 40);
  EXPECT_EQ(there.params, costs.params);
  EXPECT_EQ(rank_costs_from_text(to_text(RankCosts())).params, std::vector<int64_t>());
}

TEST(TotalBytes, LeavesOutWhatIsUnknown) {
  EXPECT_EQ(total_bytes(rank_with(9, 0, {}).wrap), 143);
}

// Two stages with two shards each. The third block is tied to the first, and has a parameter of its
// own.
TEST(CostsOfStages, AreThoseOfTheRanksOfEachStage) {
  const int64_t embed[] = {0}, middle[] = {1, 2}, head[] = {3, 0};
  YokeBlock blocks[3] = {};
  blocks[0].params = embed;
  blocks[0].num_params = 1;
  blocks[1].params = middle;
  blocks[1].num_params = 2;
  blocks[2].params = head;
  blocks[2].num_params = 2;
  const YokeBlock* list[] = {&blocks[0], &blocks[1], &blocks[2]};
  YokeModelSummary model{};
  model.blocks = list;
  model.num_blocks = 3;
  // No single rank has all parameters of the second block. The copy of the tied parameter on the
  // second stage is not saved.
  const std::vector<RankCosts> ranks = {rank_with(5, 10, {0, 1}),
                                        rank_with(8, 12, {0, 2}),
                                        rank_with(40, 3, {0, 3}),
                                        rank_with(20, 4, {0, 3})};
  const auto stages = costs_of_stages(ranks, Mesh({2, 1, 2, 1, 1}), model);
  ASSERT_EQ(stages.size(), 2u);
  EXPECT_EQ(stages[0].worst.activation_bytes, 8);
  EXPECT_EQ(stages[1].worst.activation_bytes, 40);
  EXPECT_EQ(stages[0].parameters, 22);
  EXPECT_EQ(stages[1].parameters, 7);
  EXPECT_EQ(stages[0].blocks, 2);
  EXPECT_EQ(stages[1].blocks, 1);
}

}  // namespace
}  // namespace yoke
