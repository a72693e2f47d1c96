// Compares the operators on a GPU with their compositions in fp64 on the CPU.
#include <ATen/ATen.h>
#include <gtest/gtest.h>
#include <torch/csrc/autograd/autograd.h>

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "core/cuda/rank_device.hpp"
#include "core/kernels/ops.hpp"
#include "tests/support/gpu.hpp"

namespace yoke::testing {
namespace {

using Tensors = std::vector<at::Tensor>;
using Op = std::function<at::Tensor(const Tensors&)>;

double tolerance(at::ScalarType type) {
  return type == at::kDouble ? 1e-13 : type == at::kFloat ? 5e-6 : type == at::kHalf ? 3e-3 : 2e-2;
}

class OpsOnGpu : public ::testing::TestWithParam<at::ScalarType> {
 protected:
  void SetUp() override {
    YOKE_REQUIRE_GPU();
    rank_ = std::make_unique<RankDevice>(0);
    at::manual_seed(1);
  }
  at::Tensor random(at::IntArrayRef shape, double scale = 1) const {
    return (at::randn(shape, at::kDouble) * scale).to(GetParam());
  }
  at::Tensor on_gpu(const at::Tensor& t) const { return t.to(rank_->device()); }

  // Compares outputs and gradients of `op`, in the type of the test on the GPU, with those of
  // `composite`.
  void expect_same(const Op& op, const Op& composite, const Tensors& inputs) const {
    Tensors low, high;
    for (const at::Tensor& t : inputs) {
      low.push_back(on_gpu(t).set_requires_grad(true));
      high.push_back(
          t.to(at::kDouble, /*non_blocking=*/false, /*copy=*/true).set_requires_grad(true));
    }
    const at::Tensor got = op(low), expected = composite(high);
    expect_close(got, expected, "output");
    const at::Tensor weight = at::randn(got.sizes(), at::kDouble).to(got.scalar_type());
    torch::autograd::backward({got}, {on_gpu(weight)});
    torch::autograd::backward({expected}, {weight.to(at::kDouble)});
    for (size_t i = 0; i < inputs.size(); ++i)
      expect_close(low[i].grad(), high[i].grad(), "gradient " + std::to_string(i));
  }

  static void expect_close(const at::Tensor& got,
                           const at::Tensor& expected,
                           const std::string& what) {
    const double error =
        ((got.detach().cpu().to(at::kDouble) - expected).abs().max() / expected.abs().max())
            .item<double>();
    EXPECT_LE(error, tolerance(GetParam())) << what;
  }

  std::unique_ptr<RankDevice> rank_;
};

TEST_P(OpsOnGpu, RotaryAgrees) {
  for (const int64_t half : {3, 16, 64}) {
    const at::Tensor angle =
        at::randn({2, 50, half}, GetParam() == at::kDouble ? at::kDouble : at::kFloat);
    const at::Tensor cos = on_gpu(angle.cos()), sin = on_gpu(angle.sin());
    expect_same(
        [&](const Tensors& t) { return ops::rotary(t[0], cos, sin); },
        [&](const Tensors& t) { return ops::composite::rotary(t[0], angle.cos(), angle.sin()); },
        {random({2, 50, 12, 2 * half})});
  }
}

TEST_P(OpsOnGpu, SwigluAgrees) {
  for (const int64_t columns : {33, 4096}) {
    expect_same([](const Tensors& t) { return ops::swiglu(t[0], t[1]); },
                [](const Tensors& t) { return ops::composite::swiglu(t[0], t[1]); },
                {random({2, 30, columns}, 3), random({2, 30, columns})});
  }
}

TEST_P(OpsOnGpu, CrossEntropyAgrees) {
  for (const int64_t columns : {7, 256, 50257, 128256}) {
    at::Tensor targets = at::randint(columns, {2, 30}, at::kLong);
    targets[1].slice(0, 5, 9).fill_(ops::kIgnoredTarget);
    const at::Tensor on_device = on_gpu(targets);
    expect_same([&](const Tensors& t) { return ops::cross_entropy_sum(t[0], on_device); },
                [&](const Tensors& t) { return ops::composite::cross_entropy_sum(t[0], targets); },
                {random({2, 30, columns}, 3)});
  }
}

// One row is used 2,000 times. A sum in bf16 would lose most of its gradient.
TEST_P(OpsOnGpu, EmbeddingAgrees) {
  const at::Tensor ids = at::cat({at::arange(7), at::full({2000}, 3, at::kLong)});
  const at::Tensor on_device = on_gpu(ids);
  expect_same([&](const Tensors& t) { return ops::embedding(t[0], on_device); },
              [&](const Tensors& t) { return ops::composite::embedding(t[0], ids); },
              {random({7, 64})});
}

INSTANTIATE_TEST_SUITE_P(Types,
                         OpsOnGpu,
                         ::testing::Values(at::kDouble, at::kFloat, at::kBFloat16, at::kHalf),
                         [](const auto& info) { return std::string(c10::toString(info.param)); });

}  // namespace
}  // namespace yoke::testing
