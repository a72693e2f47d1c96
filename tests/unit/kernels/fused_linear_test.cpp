// Tests what products keep for the backward, and where they put large results. ops_test.cpp tests
// their values.
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

// 32 MiB and more.
TEST(FusedLinear, ALargeProductHasTheMemoryOfTheOneBeforeIfThatIsFree) {
  const at::Tensor x = at::ones({1024, 2}), weight = at::ones({8192, 2}),
                   wider = at::ones({8208, 2});
  const auto product = [&](const at::Tensor& by) { return ops::linears(x, {by})[0]; };
  const at::Tensor kept = product(weight);
  at::Tensor other = product(weight);
  EXPECT_NE(other.const_data_ptr(), kept.const_data_ptr());
  const void* const memory = other.const_data_ptr();
  const at::Tensor view = other.narrow(0, 1, 1);
  other = product(weight);
  EXPECT_NE(other.const_data_ptr(), memory) << "a view still uses it";
  const void* const last = other.const_data_ptr();
  other.zero_();
  other.reset();
  other = product(weight);
  EXPECT_EQ(other.const_data_ptr(), last);
  EXPECT_TRUE(other.eq(2).all().item<bool>());
  other.reset();
  EXPECT_EQ(product(wider).sizes(), (std::vector<int64_t>{1024, 8208}));
  EXPECT_EQ(product(weight).storage().nbytes(), 32 << 20) << "no more than it needs";
  EXPECT_TRUE(kept.eq(2).all().item<bool>());
  EXPECT_TRUE(view.eq(2).all().item<bool>());
}

}  // namespace
}  // namespace yoke
