#include "plugins/ptd/optim/param_squares.hpp"

#include <ATen/ATen.h>
#include <ATen/Parallel.h>
#include <gtest/gtest.h>

namespace yoke::ptd {
namespace {

// Four parameters in two blocks: the second one is frozen, and another rank counts the third one.
ModelSpec model() {
  ModelSpec model{{{5000, true, true}, {7, false, true}, {1200, true, true}, {33, true, false}},
                  {{0, 1}, {2, 3}}};
  model.params[2].counted = false;
  return model;
}

// Returns what a rank writes for `model` if its blocks are merged into units of that size.
at::Tensor squares_of(const ModelSpec& model, int64_t unit_bytes, at::ScalarType type) {
  const ShardState state(
      model, make_units(model, unit_bytes, 4), 1, 0, {type, type, type}, at::kCPU);
  for (const ShardState::UnitShard& unit : state.units) {
    if (!unit.trainable) continue;
    for (const FlatLayout::Slot& slot : unit.layout.slots())
      state.grads.narrow(0, unit.begin + slot.offset, slot.numel)
          .copy_(at::sin(at::arange(slot.numel, at::kDouble) + slot.param));
  }
  const ParamSquares squares(model, state);
  EXPECT_EQ(squares.size(), 4);
  at::Tensor out = at::full({4}, -1, at::kDouble);
  squares.write(out);
  return out;
}

TEST(ParamSquares, AreTheSumsOfTheParametersThatARankCounts) {
  const at::Tensor out = squares_of(model(), 1, at::kDouble);
  EXPECT_NEAR(out[0].item<double>(),
              at::sin(at::arange(5000, at::kDouble)).square().sum().item<double>(),
              1e-10);
  EXPECT_EQ(out[1].item<double>(), -1);
  EXPECT_EQ(out[2].item<double>(), -1);
  EXPECT_NEAR(out[3].item<double>(),
              at::sin(at::arange(33, at::kDouble) + 3).square().sum().item<double>(),
              1e-12);
}

// A single rank has all blocks, a rank of a pipeline some of them, in units of other sizes.
TEST(ParamSquares, DoNotDependOnTheUnitsOrOnTheBlocksOfARank) {
  for (const at::ScalarType type : {at::kDouble, at::kFloat, at::kBFloat16}) {
    const at::Tensor expected = squares_of(model(), 1, type);
    EXPECT_TRUE(at::equal(squares_of(model(), 1 << 20, type), expected)) << type;
    ModelSpec part = model();
    part.blocks = {{2, 3}};
    const at::Tensor of_part = squares_of(part, 1, type);
    EXPECT_EQ(of_part[0].item<double>(), -1);
    EXPECT_EQ(of_part[3].item<double>(), expected[3].item<double>()) << type;
  }
}

TEST(ParamSquares, ARankWithoutTrainedParametersWritesNothing) {
  ModelSpec frozen = model();
  frozen.blocks = {{1}};
  EXPECT_TRUE(at::equal(squares_of(frozen, 1, at::kFloat), at::full({4}, -1, at::kDouble)));
}

// The ranks of a pipeline may have fewer threads than a single rank.
TEST(ParamSquares, DoNotDependOnTheNumberOfThreads) {
  ModelSpec large = model();
  large.params[0].numel = int64_t{512} * 40000;
  const int before = at::get_num_threads();
  at::set_num_threads(1);
  const at::Tensor expected = squares_of(large, 1, at::kFloat);
  at::set_num_threads(4);
  EXPECT_TRUE(at::equal(squares_of(large, 1, at::kFloat), expected));
  at::set_num_threads(before);
}

}  // namespace
}  // namespace yoke::ptd
