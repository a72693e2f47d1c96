// Runs the operators of a device with emulated kernels, and compares them with the compositions of
// ATen operators.
#include "core/kernels/device_ops.hpp"

#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include <cmath>
#include <limits>

#include "core/kernels/ops.hpp"
#include "tests/support/emulated_cuda.hpp"
#include "tests/unit/kernels/ops_fixture.hpp"

namespace yoke {
namespace {

using testing::Inputs;
namespace device = ops::device;

class DeviceOpsTest : public testing::OpsTest {
  testing::EmulatedCuda cuda_;
};

// Sizes that are processed in packs, and sizes that are not.
TEST_P(DeviceOpsTest, RotaryAgrees) {
  for (const int64_t half : {3, 4, 16}) {
    const at::Tensor angle =
        at::randn({2, 5, half}, GetParam() == at::kDouble ? at::kDouble : at::kFloat);
    expect_same(
        [&](const Inputs& t) { return Inputs{device::rotary(t[0], angle.cos(), angle.sin())}; },
        [&](const Inputs& t) {
          return Inputs{ops::composite::rotary(t[0], angle.cos(), angle.sin())};
        },
        {random({2, 5, 3, 2 * half})});
  }
}

TEST_P(DeviceOpsTest, SwigluAgrees) {
  for (const int64_t columns : {11, 32}) {
    expect_same([](const Inputs& t) { return Inputs{device::swiglu(t[0], t[1])}; },
                [](const Inputs& t) { return Inputs{ops::composite::swiglu(t[0], t[1])}; },
                {random({2, 3, columns}, 3), random({2, 3, columns})});
  }
}

TEST_P(DeviceOpsTest, CrossEntropyAgrees) {
  const at::Tensor targets =
      at::tensor({3, 0, -100, 15, 7, -100, 1, 2, -100, -100}, at::kLong).view({2, 5});
  for (const int64_t columns : {16, 50, 160}) {
    expect_same(
        [&](const Inputs& t) { return Inputs{device::cross_entropy_sum(t[0], targets)}; },
        [&](const Inputs& t) { return Inputs{ops::composite::cross_entropy_sum(t[0], targets)}; },
        {random({2, 5, columns}, 3)});
  }
}

// A view that begins in the middle of its memory cannot be read in packs.
TEST_P(DeviceOpsTest, TakesTensorsAtAnyAddressAndOfAnyLayout) {
  const at::Tensor targets = at::tensor({3, 0, -100}, at::kLong);
  const auto moved = [](const at::Tensor& t) { return t.flatten().slice(0, 1).slice(0, 0, 48); };
  expect_same(
      [&](const Inputs& t) {
        return Inputs{device::cross_entropy_sum(moved(t[0]).view({3, 16}), targets),
                      device::swiglu(moved(t[0]), moved(t[1])),
                      device::swiglu(t[0].t(), t[1].t())};
      },
      [&](const Inputs& t) {
        return Inputs{ops::composite::cross_entropy_sum(moved(t[0]).view({3, 16}), targets),
                      ops::composite::swiglu(moved(t[0]), moved(t[1])),
                      ops::composite::swiglu(t[0].t(), t[1].t())};
      },
      {random({7, 8}), random({7, 8})});
}

TEST_P(DeviceOpsTest, CrossEntropyOfLargeNumbersAgrees) {
  at::Tensor logits = random({4, 32}, 100);
  logits[1].fill_(-300);
  logits[2].slice(0, 0, 8).fill_(-std::numeric_limits<double>::infinity());  // a whole pack
  const at::Tensor targets = at::tensor({3, 0, 17, 31}, at::kLong);
  expect_same(
      [&](const Inputs& t) { return Inputs{device::cross_entropy_sum(t[0], targets)}; },
      [&](const Inputs& t) { return Inputs{ops::composite::cross_entropy_sum(t[0], targets)}; },
      {logits});
}

INSTANTIATE_TEST_SUITE_P(Types,
                         DeviceOpsTest,
                         ::testing::Values(at::kDouble, at::kFloat, at::kBFloat16, at::kHalf),
                         [](const auto& info) { return std::string(c10::toString(info.param)); });

TEST(DeviceOps, BadNumbersAndTargetsMakeTheLossNaN) {
  const testing::EmulatedCuda cuda;
  const double infinity = std::numeric_limits<double>::infinity();
  const auto loss = [](const at::Tensor& logits, int64_t target) {
    return device::cross_entropy_sum(logits, at::full({1}, target, at::kLong)).item<double>();
  };
  EXPECT_FALSE(std::isnan(loss(at::zeros({1, 16}), 15)));
  for (const int64_t target : {-101, -1, 16})
    EXPECT_TRUE(std::isnan(loss(at::zeros({1, 16}), target)));
  for (const double bad : {std::nan(""), infinity}) {
    for (const int64_t column : {0, 9}) {
      at::Tensor logits = at::zeros({1, 16});
      logits[0][column] = bad;
      EXPECT_TRUE(std::isnan(loss(logits, 3))) << bad << column;
    }
  }
  EXPECT_TRUE(std::isnan(loss(at::full({1, 16}, -infinity), 3)));
}

// If all rows are ignored, the gradient is 0 even where the logits are bad.
TEST(DeviceOps, RowsWithoutTargetHaveNoGradient) {
  const testing::EmulatedCuda cuda;
  const at::Tensor logits = at::full({2, 16}, std::nan("")).set_requires_grad(true);
  device::cross_entropy_sum(logits.clone(), at::full({2}, ops::kIgnoredTarget, at::kLong))
      .backward();
  EXPECT_TRUE(logits.grad().eq(0).all().item<bool>());
}

// Meta tensors have no values, so code that reads a value fails here. On a device such code would
// wait for the device.
TEST(DeviceOps, LookAtNoValue) {
  const testing::EmulatedCuda cuda;
  const auto meta = [](at::IntArrayRef shape, at::ScalarType type = at::kFloat) {
    return at::zeros(shape, at::TensorOptions(at::kMeta).dtype(type));
  };
  const at::Tensor weight = meta({16, 16}).set_requires_grad(true), angle = meta({2, 5, 4});
  const at::Tensor ids = meta({2, 5}, at::kLong);
  const at::Tensor x = ops::rms_norm(meta({2, 5, 16}), weight[0], 1e-5);
  const at::Tensor q = ops::linears(x, {weight})[0].view({2, 5, 2, 8});
  const at::Tensor h = ops::linear_add(x, device::rotary(q, angle, angle).flatten(2), weight);
  device::cross_entropy_sum(device::swiglu(h, x), ids).backward();
  EXPECT_EQ(weight.grad().sizes(), weight.sizes());
}

}  // namespace
}  // namespace yoke
