// Compares the operators on a GPU with their compositions in fp64 on the CPU.
#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include <memory>

#include "core/cuda/rank_device.hpp"
#include "core/kernels/ops.hpp"
#include "tests/support/gpu.hpp"
#include "tests/unit/kernels/ops_fixture.hpp"

namespace yoke::testing {
namespace {

class OpsOnGpu : public OpsTest {
 protected:
  void SetUp() override {
    YOKE_REQUIRE_GPU();
    rank_ = std::make_unique<RankDevice>(0);
    OpsTest::SetUp();
  }
  at::Tensor on_gpu(const at::Tensor& t) const { return t.to(rank_->device()); }

  // Compares an operator on the GPU with a composition. Gradients flow through the copies.
  void expect_same_on_gpu(const std::function<at::Tensor(const Inputs&)>& op,
                          const std::function<at::Tensor(const Inputs&)>& composite,
                          const Inputs& inputs) {
    expect_same(
        [&](const Inputs& given) {
          Inputs copies;
          for (const at::Tensor& t : given) copies.push_back(on_gpu(t));
          return Inputs{op(copies).cpu()};
        },
        [&](const Inputs& t) { return Inputs{composite(t)}; },
        inputs);
  }

  std::unique_ptr<RankDevice> rank_;
};

TEST_P(OpsOnGpu, RotaryAgrees) {
  for (const int64_t half : {3, 16, 64}) {
    const at::Tensor angle =
        at::randn({2, 50, half}, GetParam() == at::kDouble ? at::kDouble : at::kFloat);
    const at::Tensor cos = on_gpu(angle.cos()), sin = on_gpu(angle.sin());
    expect_same_on_gpu(
        [&](const Inputs& t) { return ops::rotary(t[0], cos, sin); },
        [&](const Inputs& t) { return ops::composite::rotary(t[0], angle.cos(), angle.sin()); },
        {random({2, 50, 12, 2 * half})});
  }
}

TEST_P(OpsOnGpu, SwigluAgrees) {
  for (const int64_t columns : {33, 4096}) {
    expect_same_on_gpu([](const Inputs& t) { return ops::swiglu(t[0], t[1]); },
                       [](const Inputs& t) { return ops::composite::swiglu(t[0], t[1]); },
                       {random({2, 30, columns}, 3), random({2, 30, columns})});
  }
}

TEST_P(OpsOnGpu, CrossEntropyAgrees) {
  for (const int64_t columns : {7, 256, 50257, 128256}) {
    at::Tensor targets = at::randint(columns, {2, 30}, at::kLong);
    targets[1].slice(0, 5, 9).fill_(ops::kIgnoredTarget);
    const at::Tensor on_device = on_gpu(targets);
    expect_same_on_gpu(
        [&](const Inputs& t) { return ops::cross_entropy_sum(t[0], on_device); },
        [&](const Inputs& t) { return ops::composite::cross_entropy_sum(t[0], targets); },
        {random({2, 30, columns}, 3)});
  }
}

// One row is used 2,000 times. A sum in bf16 would lose most of its gradient.
TEST_P(OpsOnGpu, EmbeddingAgrees) {
  const at::Tensor ids = at::cat({at::arange(7), at::full({2000}, 3, at::kLong)});
  const at::Tensor on_device = on_gpu(ids);
  expect_same_on_gpu([&](const Inputs& t) { return ops::embedding(t[0], on_device); },
                     [&](const Inputs& t) { return ops::composite::embedding(t[0], ids); },
                     {random({7, 64})});
}

INSTANTIATE_TEST_SUITE_P(Types,
                         OpsOnGpu,
                         ::testing::Values(at::kDouble, at::kFloat, at::kBFloat16, at::kHalf),
                         [](const auto& info) { return std::string(c10::toString(info.param)); });

}  // namespace
}  // namespace yoke::testing
