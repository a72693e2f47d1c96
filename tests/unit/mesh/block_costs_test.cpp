#include "sdk/mesh/schedule/block_costs.hpp"

#include <gtest/gtest.h>

#include "yoke/cut_costs.hpp"

namespace yoke::mesh {
namespace {

// One block with two parameters: tp cuts the first, of 300 elements, and not the second, of 100.
struct Model {
  Model() {
    for (YokeParameter& param : params)
      param.header = YOKE_HEADER(YokeParameter, YOKE_ID_PARAMETER);
    params[0].shape = &sizes[0];
    params[1].shape = &sizes[1];
    params[0].ndim = params[1].ndim = 1;
    params[0].tp_cut = 1;
    params[1].tp_cut = YOKE_TP_WHOLE;
    block.header = YOKE_HEADER(YokeBlock, YOKE_ID_BLOCK);
    block.params = indices;
    block.num_params = 2;
    block.activation_bytes = 800;
    block.carry_bytes = 80;
    block.pass_bytes = &pass;
    block.num_pass_bytes = 1;
    cut.kept = {.stream = 1000, .parts = 400, .inputs = 50, .logits = 20, .whole = 6};
    cut.carry = {.whole = 8};
    cut.passes = &cut_pass;
    cut.num_passes = 1;
    costs.header = YOKE_HEADER(CutCosts, kCutCostsId);
    costs.blocks = &cut;
    summary.header = YOKE_HEADER(YokeModelSummary, YOKE_ID_MODEL_SUMMARY);
    summary.params = param_pointers;
    summary.num_params = 2;
    summary.blocks = &pointer;
    summary.num_blocks = 1;
  }
  Model(const Model&) = delete;

  BlockCost cost(int cp, int tp, const TensorCuts& cuts = {true, true}) {
    YokePlan plan{};
    for (int32_t& degree : plan.degree) degree = 1;
    plan.degree[YOKE_CP] = cp;
    plan.degree[YOKE_TP] = tp;
    plan.micro_batch = 4;
    return block_cost(summary, 0, plan, cuts);
  }

  int64_t sizes[2] = {300, 100};
  YokeParameter params[2] = {};
  const YokeParameter* param_pointers[2] = {&params[0], &params[1]};
  int64_t indices[2] = {0, 1};
  YokePassBytes pass{YOKE_FORECAST_BACKWARD, 0, 40, 400};
  YokeBlock block{};
  const YokeBlock* pointer = &block;
  CutPass cut_pass{YOKE_FORECAST_BACKWARD, {.parts = 12, .weights = 400}};
  CutBlock cut{};
  CutCosts costs{};
  YokeModelSummary summary{};
};

TEST(BlockCosts, AreThoseOfTheBlockWithoutTpAndCp) {
  Model model;
  model.summary.header.next = &model.costs.header;
  const BlockCost cost = model.cost(1, 1);
  EXPECT_EQ(cost.activation, 3200);
  EXPECT_EQ(cost.carry, 320);
  EXPECT_EQ(cost.passes->backward, 40 * 4 + 400);
}

TEST(BlockCosts, FollowTheCutsOfTp) {
  Model model;
  model.summary.header.next = &model.costs.header;
  const BlockCost cost = model.cost(1, 2);
  EXPECT_EQ(cost.activation, 4 * (500 + 200 + 50 + 10 + 6));
  EXPECT_EQ(cost.carry, 4 * 8);
  EXPECT_EQ(cost.passes->backward, 4 * 6 + 400 * 250 / 400);
  EXPECT_EQ(model.cost(1, 2, {false, true}).activation, 4 * (1000 + 200 + 10 + 6));
  EXPECT_EQ(model.cost(1, 2, {true, false}).activation, 4 * (500 + 200 + 50 + 20 + 6));
  // A forward that gathers logits also has those of this rank, and the received ones.
  model.cut_pass.kind = YOKE_FORECAST_FORWARD;
  EXPECT_EQ(model.cost(1, 2).passes->forward, 4 * 6 + 250);
  EXPECT_EQ(model.cost(1, 2, {true, false}).passes->forward, 4 * 6 + 250 + 4 * (10 + 20));
}

TEST(BlockCosts, OfCpAreThoseOfPartOfTheSequence) {
  Model model;
  model.summary.header.next = &model.costs.header;
  const BlockCost cost = model.cost(2, 1);
  EXPECT_EQ(cost.activation, 4 * (1000 + 400 + 20 + 6) / 2);
  EXPECT_EQ(cost.passes->backward, 4 * 12 / 2 + 400);
  EXPECT_EQ(model.cost(2, 2).activation, 4 * (500 + 200 + 50 + 10 + 6) / 2);
}

TEST(BlockCosts, OfAModelThatReportsNoCutsAreUnknownWithTpOnly) {
  Model model;
  const BlockCost cost = model.cost(2, 1);
  EXPECT_EQ(cost.activation, 1600);
  EXPECT_EQ(cost.carry, 160);
  EXPECT_EQ(cost.passes->backward, 40 * 4 / 2 + 400);
  EXPECT_EQ(model.cost(1, 2).activation, -1);
  model.block.activation_bytes = -1;
  EXPECT_EQ(model.cost(2, 1).activation, -1);
}

}  // namespace
}  // namespace yoke::mesh
