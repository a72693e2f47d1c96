// Keeping the rounded numbers of weights changes no bit, and saves the rounding.
#include "core/kernels/fp8_weights.hpp"

#include <ATen/ATen.h>
#include <gtest/gtest.h>
#include <torch/csrc/autograd/autograd.h>

#include <string>
#include <thread>
#include <tuple>
#include <vector>

#include "core/kernels/ops.hpp"
#include "core/kernels/product_meter.hpp"

namespace yoke {
namespace {

using ops::Product;
using ops::ProductMeter;
using ops::fp8::keep_roundings;

class KeptWeights : public ::testing::TestWithParam<std::tuple<Product, at::ScalarType>> {
 protected:
  const Product product = std::get<0>(GetParam());
  const at::ScalarType type = std::get<1>(GetParam());
  at::Tensor weight, x, dy;

  void SetUp() override {
    at::manual_seed(4);
    weight = random({8, 16}).set_requires_grad(true);
    x = random({4, 16}).set_requires_grad(true);
    dy = random({4, 8});
  }
  void TearDown() override { keep_roundings(false); }

  at::Tensor random(at::IntArrayRef shape) const {
    return (at::randn(shape, at::kDouble) * at::exp2(at::randn(shape, at::kDouble) * 4)).to(type);
  }
  // Returns y and the gradients of x and of the weight.
  std::vector<at::Tensor> run() {
    const at::Tensor y = ops::linears(x, {{weight, product}})[0];
    torch::autograd::backward({y}, {dy});
    std::vector<at::Tensor> results{y.detach(), x.grad(), weight.grad()};
    x.mutable_grad() = weight.mutable_grad() = at::Tensor();
    return results;
  }
  static void expect_same(const std::vector<at::Tensor>& got,
                          const std::vector<at::Tensor>& expected) {
    for (size_t i = 0; i < expected.size(); ++i) EXPECT_TRUE(got[i].equal(expected[i])) << i;
  }
  // Returns how many numbers of x and dy a run() rounds.
  int64_t rounded_inputs() const {
    const ops::fp8::Recipe& recipe = ops::fp8::recipe_of(product);
    if (product == Product::kRowwiseGwHp) return x.numel() + dy.numel();
    return x.numel() * (recipe.x == recipe.x_for_dw ? 1 : 2) +
           dy.numel() * (recipe.dy == recipe.dy_for_dw ? 1 : 2);
  }
  // Returns how many numbers of weights one more run() rounds.
  int64_t rounded_weights() {
    const ProductMeter meter;
    run();
    return meter.rounded()->all - rounded_inputs();
  }
};

TEST_P(KeptWeights, AreRoundedOnce) {
  EXPECT_EQ(rounded_weights(), 2 * weight.numel());
  keep_roundings(true);
  const ops::fp8::Recipe& recipe = ops::fp8::recipe_of(product);
  EXPECT_EQ(rounded_weights(), weight.numel() * (recipe.weight == recipe.weight_for_dx ? 1 : 2));
  EXPECT_EQ(rounded_weights(), 0);
  keep_roundings(false);
  EXPECT_EQ(rounded_weights(), 2 * weight.numel());
}

TEST_P(KeptWeights, ChangeNoBit) {
  const auto expected = run();
  keep_roundings(true);
  for (int use = 0; use < 3; ++use) expect_same(run(), expected);
}

// The next scope must see weights that an update has changed, which no version counter shows.
TEST_P(KeptWeights, AreForgottenAtTheEnd) {
  keep_roundings(true);
  const auto before = run();
  keep_roundings(false);
  const at::Tensor values = at::from_blob(weight.data_ptr(), weight.sizes(), weight.options());
  values.mul_(3);
  keep_roundings(true);
  const auto kept = run();
  keep_roundings(false);
  expect_same(kept, run());
  EXPECT_FALSE(kept[0].equal(before[0]));
}

// The backward of a device runs on another thread, which has no cache of its own.
TEST_P(KeptWeights, AreFoundByABackwardAfterTheirEnd) {
  const int64_t inputs = rounded_inputs();
  keep_roundings(true);
  const at::Tensor y = ops::linears(x, {{weight, product}})[0];
  keep_roundings(false);
  const ops::fp8::Recipe& recipe = ops::fp8::recipe_of(product);
  const int64_t in_forward =
      recipe.x == recipe.x_for_dw || product == Product::kRowwiseGwHp ? x.numel() : 2 * x.numel();
  std::thread([&] {
    const ProductMeter meter;
    torch::autograd::backward({y}, {dy});
    EXPECT_EQ(meter.rounded()->all, inputs - in_forward);
  }).join();
}

TEST_P(KeptWeights, AreOnlyParameters) {
  const at::Tensor computed = weight * 2, none = at::zeros({0, 16}, type);
  EXPECT_TRUE(ops::fp8::KeptWeights::takes(weight));
  EXPECT_FALSE(ops::fp8::KeptWeights::takes(computed));
  EXPECT_FALSE(ops::fp8::KeptWeights::takes(none));
}

std::string name_of(const std::tuple<Product, at::ScalarType>& parameters) {
  const auto [product, type] = parameters;
  const char* recipe = product == Product::kTensorwise ? "tensorwise_"
                       : product == Product::kRowwise  ? "rowwise_"
                                                       : "rowwise_gw_hp_";
  return std::string(recipe) + at::toString(type);
}

INSTANTIATE_TEST_SUITE_P(
    Recipes,
    KeptWeights,
    ::testing::Combine(
        ::testing::Values(Product::kTensorwise, Product::kRowwise, Product::kRowwiseGwHp),
        ::testing::Values(at::kDouble, at::kFloat, at::kBFloat16)),
    [](const auto& info) { return name_of(info.param); });

}  // namespace
}  // namespace yoke
