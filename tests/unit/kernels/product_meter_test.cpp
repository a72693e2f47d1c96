// Counts what fp8 does to operands with a plain loop, and compares it with the meter.
#include "core/kernels/product_meter.hpp"

#include <ATen/ATen.h>
#include <gtest/gtest.h>
#include <torch/csrc/autograd/autograd.h>

#include <cmath>
#include <thread>
#include <tuple>

#include "core/kernels/fp8.hpp"
#include "core/kernels/ops.hpp"

namespace yoke {
namespace {

using ops::Product;
using ops::ProductMeter;
using ops::RoundedNumbers;
using ops::fp8::Recipe;
using ops::fp8::Rounding;
using ops::fp8::Scaling;

// Adds the numbers of a matrix to the counts, one by one.
void count(const at::Tensor& matrix, const Rounding& rounding, RoundedNumbers* counts) {
  if (rounding.scaling == Scaling::kNone) return;
  const double largest = rounding.type == at::kFloat8_e5m2 ? 57344 : 448;
  const at::Tensor scale =
      ops::fp8::scale_for(matrix, rounding).to(at::kDouble).expand(matrix.sizes());
  const at::Tensor rounded = ops::fp8::rounded(matrix, rounding).to(at::kDouble);
  for (int64_t i = 0; i < matrix.size(0); ++i) {
    for (int64_t j = 0; j < matrix.size(1); ++j) {
      const double is = rounded[i][j].item<double>() * scale[i][j].item<double>();
      ++counts->all;
      if (std::fabs(is) == largest) ++counts->largest;
      if (is == 0 && matrix[i][j].item<double>() != 0) ++counts->zeroed;
    }
  }
}

// Numbers over many powers of two, some zeros, and some that are rounded to the largest number of
// both formats: they are the largest of the matrix, and 448 or 57344 times a power of two.
at::Tensor random(at::IntArrayRef shape, at::ScalarType type) {
  at::Tensor out = at::randn(shape, at::kDouble) * at::exp2(at::randn(shape, at::kDouble) * 8);
  out[0].zero_();
  out[1].fill_(448 * std::exp2(std::ceil(std::log2(out.abs().max().item<double>() / 448))));
  return out.to(type);
}

class Meter : public ::testing::TestWithParam<std::tuple<Product, at::ScalarType>> {
 protected:
  const Product product = std::get<0>(GetParam());
  const at::ScalarType type = std::get<1>(GetParam());
  void SetUp() override { at::manual_seed(3); }
};

// x is rounded once for its products with all weights, and once more if the recipe scales it along
// another dim for the gradients.
TEST_P(Meter, CountsWhatAPlainLoopCounts) {
  const at::Tensor x = random({6, 32}, type), dy = random({6, 16}, type);
  const std::vector<at::Tensor> weights{random({16, 32}, type), random({16, 32}, type)};
  const Recipe& recipe = ops::fp8::recipe_of(product);
  RoundedNumbers expected;
  count(x, recipe.x, &expected);
  if (!(recipe.x_for_dw == recipe.x)) count(x, recipe.x_for_dw, &expected);
  for (const at::Tensor& weight : weights) {
    count(weight, recipe.weight, &expected);
    count(weight, recipe.weight_for_dx, &expected);
    count(dy, recipe.dy, &expected);
    if (!(recipe.dy_for_dw == recipe.dy)) count(dy, recipe.dy_for_dw, &expected);
  }
  std::vector<ops::Matrix> matrices;
  for (const at::Tensor& w : weights)
    matrices.emplace_back(w.clone().set_requires_grad(true), product);
  ProductMeter meter;
  for (const int times : {1, 2}) {
    torch::autograd::backward(ops::linears(x.clone().set_requires_grad(true), matrices), {dy, dy});
    const RoundedNumbers got = meter.rounded().value();
    EXPECT_EQ(got.all, times * expected.all);
    EXPECT_EQ(got.largest, times * expected.largest);
    EXPECT_EQ(got.zeroed, times * expected.zeroed);
  }
  EXPECT_GT(expected.largest, 0);
  EXPECT_GT(expected.zeroed, 0);
}

INSTANTIATE_TEST_SUITE_P(
    Recipes,
    Meter,
    ::testing::Combine(
        ::testing::Values(Product::kTensorwise, Product::kRowwise, Product::kRowwiseGwHp),
        ::testing::Values(at::kDouble, at::kFloat, at::kBFloat16)));

TEST(ProductMeter, TimesProductsOfEveryKind) {
  const at::Tensor x = at::randn({64, 64}), w = at::randn({64, 64}).set_requires_grad(true);
  ProductMeter meter;
  const at::Tensor y = ops::linears(x, {w})[0];
  const double forward = meter.product_seconds();
  EXPECT_GT(forward, 0);
  torch::autograd::backward({y}, {at::ones_like(y)});
  EXPECT_GT(meter.product_seconds(), forward);
  EXPECT_EQ(meter.rounding_seconds(), 0);
  EXPECT_EQ(meter.rounded().value().all, 0);
  ops::linears(x, {{w, Product::kTensorwise}});
  EXPECT_GT(meter.rounding_seconds(), 0);
}

TEST(ProductMeter, ChangesNoResult) {
  const at::Tensor x = random({6, 32}, at::kBFloat16), w = random({16, 32}, at::kBFloat16);
  const at::Tensor without = ops::linears(x, {{w, Product::kRowwise}})[0];
  const ProductMeter meter;
  EXPECT_TRUE(ops::linears(x, {{w, Product::kRowwise}})[0].equal(without));
}

TEST(ProductMeter, SeesOnlyItsThreadAndOnlyWhileItLives) {
  const at::Tensor x = at::randn({4, 16}), w = at::randn({16, 16});
  {
    ProductMeter meter;
    std::thread([&] { ops::linears(x, {{w, Product::kTensorwise}}); }).join();
    EXPECT_EQ(meter.rounded().value().all, 0);
    EXPECT_EQ(meter.product_seconds(), 0);
  }
  EXPECT_EQ(ProductMeter::current(), nullptr);
  ops::linears(x, {{w, Product::kTensorwise}});  // must not use the meter that is gone
}

}  // namespace
}  // namespace yoke
