// Tests what products keep for the backward. ops_test.cpp tests their values.
#include <ATen/ATen.h>
#include <gtest/gtest.h>
#include <torch/csrc/autograd/autograd.h>

#include <functional>

#include "core/kernels/ops.hpp"

namespace yoke {
namespace {

// What an operator does with an input that nothing else holds.
struct InputUse {
  bool kept;            // whether the backward holds it
  at::Tensor gradient;  // gradient of the input
};
InputUse use_input(const std::function<at::Tensor(const at::Tensor&)>& op) {
  at::manual_seed(2);
  const at::Tensor leaf = at::randn({2, 3, 8}, at::kDouble).set_requires_grad(true);
  at::Tensor x = leaf * 2;
  const c10::weak_intrusive_ptr<at::TensorImpl> held(x.getIntrusivePtr());
  const at::Tensor out = op(x);
  x.reset();
  const bool kept = !held.expired();
  torch::autograd::backward({out}, {at::randn(out.sizes(), at::kDouble)});
  return {kept, leaf.grad()};
}

// The gradient of the input needs the weight only. Most weights are frozen in fine-tuning.
TEST(FusedLinear, KeepsNoInputsOfFrozenWeights) {
  const at::Tensor residual = at::randn({2, 3, 8}, at::kDouble);
  const at::Tensor first = at::randn({8, 8}, at::kDouble), second = at::randn({8, 8}, at::kDouble);
  for (const bool input_first : {false, true}) {
    const auto matrix = [&](const at::Tensor& weight, bool trained) {
      const at::Tensor leaf = weight.detach().set_requires_grad(trained);
      return ops::Matrix(leaf, ops::Product::kPlain, {}, input_first);
    };
    const auto linears = [&](bool trained) {
      return use_input([&](const at::Tensor& x) {
        const auto out = ops::linears(x, {matrix(first, false), matrix(second, trained)});
        return out[0] * out[1];
      });
    };
    const auto add = [&](bool trained) {
      return use_input([&](const at::Tensor& x) {
        return ops::linear_add(residual, x, matrix(first, trained));
      });
    };
    EXPECT_TRUE(linears(true).kept);
    EXPECT_FALSE(linears(false).kept);
    EXPECT_TRUE(at::equal(linears(false).gradient, linears(true).gradient));
    EXPECT_TRUE(add(true).kept);
    EXPECT_FALSE(add(false).kept);
    EXPECT_TRUE(at::equal(add(false).gradient, add(true).gradient));
  }
}

}  // namespace
}  // namespace yoke
