// Runs the operators of a device with emulated kernels, and compares them with the compositions of
// ATen operators.
#include "core/kernels/device_ops.hpp"

#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include <cmath>
#include <limits>

#include "core/kernels/fused_ops.hpp"
#include "core/kernels/ops.hpp"
#include "tests/support/emulated_cuda.hpp"
#include "tests/unit/kernels/ops_fixture.hpp"

namespace yoke {
namespace {

using testing::Inputs;
namespace device = ops::device;
namespace fused = ops::fused;

class DeviceOpsTest : public testing::OpsTest {
  testing::EmulatedCuda cuda_{/*everywhere=*/true};
};

// Sizes that are processed in packs, and sizes that are not. The queries have more heads.
TEST_P(DeviceOpsTest, RotaryAgrees) {
  for (const int64_t half : {3, 4, 16}) {
    const at::Tensor angle =
        at::randn({2, 5, half}, GetParam() == at::kDouble ? at::kDouble : at::kFloat);
    const at::Tensor cos = angle.cos(), sin = angle.sin();
    expect_same(
        [&](const Inputs& t) {
          const auto [q, k] = fused::rotary(t[0], t[1], cos, sin);
          return Inputs{q, k};
        },
        [&](const Inputs& t) {
          return Inputs{ops::composite::rotary(t[0], cos, sin),
                        ops::composite::rotary(t[1], cos, sin)};
        },
        {random({2, 5, 3, 2 * half}), random({2, 5, 1, 2 * half})});
  }
}

// Tokens that are parts of longer rows, heads that are not contiguous, and sequences that are parts
// of longer ones.
TEST_P(DeviceOpsTest, RotaryTakesPartsOfTensors) {
  const at::Tensor angle =
      at::randn({2, 5, 4}, GetParam() == at::kDouble ? at::kDouble : at::kFloat);
  const at::Tensor cos = angle.cos(), sin = angle.sin();
  const auto parts = [](const at::Tensor& t) {
    return Inputs{t.slice(-1, 0, 24).view({2, 5, 3, 8}), t.slice(-1, 24, 32).view({2, 5, 1, 8})};
  };
  expect_same(
      [&](const Inputs& t) {
        const Inputs p = parts(t[0]);
        const auto packed = fused::rotary(p[0], p[1], cos, sin);
        const auto moved = fused::rotary(t[1].transpose(1, 2), p[1], cos, sin);
        const auto shorter = fused::rotary(t[2].slice(1, 0, 5), p[1], cos, sin);
        return Inputs{packed.q, packed.k, moved.q, shorter.q};
      },
      [&](const Inputs& t) {
        const Inputs p = parts(t[0]);
        return Inputs{ops::composite::rotary(p[0], cos, sin),
                      ops::composite::rotary(p[1], cos, sin),
                      ops::composite::rotary(t[1].transpose(1, 2), cos, sin),
                      ops::composite::rotary(t[2].slice(1, 0, 5), cos, sin)};
      },
      {random({2, 5, 40}), random({2, 2, 5, 8}), random({2, 7, 3, 8})});
}

// A dim of size 1 may have any stride in a tensor that counts as contiguous.
TEST_P(DeviceOpsTest, RotaryTakesSequencesOfOneToken) {
  const at::Tensor angle =
      at::randn({2, 1, 4}, GetParam() == at::kDouble ? at::kDouble : at::kFloat);
  const at::Tensor cos = angle.cos(), sin = angle.sin();
  expect_same(
      [&](const Inputs& t) {
        const auto [q, k] = fused::rotary(t[0].transpose(1, 2), t[1].transpose(0, 1), cos, sin);
        return Inputs{q, k};
      },
      [&](const Inputs& t) {
        return Inputs{ops::composite::rotary(t[0].transpose(1, 2), cos, sin),
                      ops::composite::rotary(t[1].transpose(0, 1), cos, sin)};
      },
      {random({2, 3, 1, 8}), random({1, 2, 1, 8})});
}

// With one line of sums, with a few and with many.
TEST_P(DeviceOpsTest, NormAgrees) {
  for (const int64_t rows : {1, 7, 50, 300}) {
    for (const int64_t columns : {11, 32}) {
      expect_same(
          [](const Inputs& t) {
            const auto [norm, residual] = device::rms_norm(t[0], t[1], 1e-5);
            return Inputs{norm, residual};
          },
          [](const Inputs& t) {
            return Inputs{ops::composite::rms_norm(t[0], t[1], 1e-5), t[0]};
          },
          {random({2, rows, columns}), random({columns})});
    }
  }
}

TEST_P(DeviceOpsTest, NormAgreesIfOneResultIsNotUsed) {
  expect_same([](const Inputs& t) { return Inputs{device::rms_norm(t[0], t[1], 1e-5).norm}; },
              [](const Inputs& t) { return Inputs{ops::composite::rms_norm(t[0], t[1], 1e-5)}; },
              {random({3, 4, 16}), random({16})});
  const at::Tensor x = random({3, 16}).set_requires_grad(true), weight = random({16});
  device::rms_norm(x, weight, 1e-5).residual.sum().backward();
  EXPECT_TRUE(x.grad().eq(1).all().item<bool>());
}

TEST_P(DeviceOpsTest, SwigluAgrees) {
  for (const int64_t columns : {11, 32}) {
    expect_same([](const Inputs& t) { return Inputs{fused::swiglu(t[0], t[1])}; },
                [](const Inputs& t) { return Inputs{ops::composite::swiglu(t[0], t[1])}; },
                {random({2, 3, columns}, 3), random({2, 3, columns})});
  }
}

TEST_P(DeviceOpsTest, CrossEntropyAgrees) {
  const at::Tensor targets =
      at::tensor({3, 0, -100, 15, 7, -100, 1, 2, -100, -100}, at::kLong).view({2, 5});
  for (const int64_t columns : {16, 17, 50, 160}) {
    expect_same(
        [&](const Inputs& t) { return Inputs{device::cross_entropy_sum(t[0], targets)}; },
        [&](const Inputs& t) { return Inputs{ops::composite::cross_entropy_sum(t[0], targets)}; },
        {random({2, 5, columns}, 3)});
  }
}

// A view that begins in the middle of its memory cannot be read in packs. The gradients of three
// views are added up.
TEST_P(DeviceOpsTest, TakesTensorsAtAnyAddressAndOfAnyLayout) {
  const at::Tensor targets = at::tensor({3, 0, -100}, at::kLong);
  const auto moved = [](const at::Tensor& t) { return t.flatten().slice(0, 1).slice(0, 0, 48); };
  expect_same(
      [&](const Inputs& t) {
        return Inputs{device::cross_entropy_sum(moved(t[0]).view({3, 16}), targets),
                      fused::swiglu(moved(t[0]), moved(t[1])),
                      fused::swiglu(t[0].t(), t[1].t())};
      },
      [&](const Inputs& t) {
        return Inputs{ops::composite::cross_entropy_sum(moved(t[0]).view({3, 16}), targets),
                      ops::composite::swiglu(moved(t[0]), moved(t[1])),
                      ops::composite::swiglu(t[0].t(), t[1].t())};
      },
      {random({7, 8}), random({7, 8})},
      /*slack=*/1,
      /*of_gradients=*/roundings(3));
}

TEST_P(DeviceOpsTest, CrossEntropyOfLargeNumbersAgrees) {
  at::Tensor logits = random({4, 32}, 100);
  logits[1].fill_(-300);
  logits[2].slice(0, 0, 8).fill_(-std::numeric_limits<double>::infinity());  // a whole pack
  const at::Tensor targets = at::tensor({3, 0, 17, 31}, at::kLong);
  // The gradient is exp(logit - lse), and the rounding of an lse of several hundreds shows in it.
  expect_same(
      [&](const Inputs& t) { return Inputs{device::cross_entropy_sum(t[0], targets)}; },
      [&](const Inputs& t) { return Inputs{ops::composite::cross_entropy_sum(t[0], targets)}; },
      {logits},
      /*slack=*/1,
      /*of_gradients=*/GetParam() == at::kFloat ? 2 : 1);
}

// Rows that begin further apart than they are long.
TEST_P(DeviceOpsTest, CrossEntropyAgreesOnPaddedRows) {
  const at::Tensor targets = at::tensor({3, 0, -100, 49}, at::kLong).view({2, 2});
  for (const int64_t columns : {3, 50}) {
    const at::Tensor ids = targets.clamp_max(columns - 1);
    const auto part = [&](const at::Tensor& t) { return t.slice(-1, 0, columns); };
    expect_same(
        [&](const Inputs& t) { return Inputs{device::cross_entropy_sum(part(t[0]), ids)}; },
        [&](const Inputs& t) { return Inputs{ops::composite::cross_entropy_sum(part(t[0]), ids)}; },
        {random({2, 2, 64}, 3)});
  }
}

INSTANTIATE_TEST_SUITE_P(Types,
                         DeviceOpsTest,
                         ::testing::Values(at::kDouble, at::kFloat, at::kBFloat16, at::kHalf),
                         [](const auto& info) { return std::string(c10::toString(info.param)); });

TEST(StridedRows, HaveGaps) {
  const StridedRows rows{8, 20};
  EXPECT_EQ(rows.at(7), 7);
  EXPECT_EQ(rows.at(8), 20);
  EXPECT_EQ(rows.at(19), 43);
  EXPECT_EQ(rows.at((int64_t{1} << 32) + 3), (int64_t{1} << 29) * 20 + 3);
  EXPECT_EQ((StridedRows{8, 8}.at(19)), 19);
  EXPECT_TRUE((StridedRows{8, 16}.takes_packs<float>()));
  EXPECT_FALSE((StridedRows{8, 18}.takes_packs<float>()));
  EXPECT_FALSE((StridedRows{6, 16}.takes_packs<float>()));
  EXPECT_TRUE((StridedRows{6, 6}.takes_packs<float>()));
}

// A dim of size 1 may have any stride.
TEST_P(DeviceOpsTest, SwigluTakesMeaninglessStrides) {
  expect_same(
      [](const Inputs& t) {
        return Inputs{fused::swiglu(t[0].transpose(0, 1), t[1].transpose(0, 1))};
      },
      [](const Inputs& t) {
        return Inputs{ops::composite::swiglu(t[0].transpose(0, 1), t[1].transpose(0, 1))};
      },
      {random({1, 5, 8}), random({1, 5, 8})});
}

TEST(DeviceOps, BadNumbersAndTargetsMakeTheLossNaN) {
  const testing::EmulatedCuda cuda(/*everywhere=*/true);
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

// Lengths that are whole packs, and lengths with a rest: the update of all elements is that of each
// element by itself.
TEST(DeviceOps, AdamWUpdatesEveryElement) {
  const testing::EmulatedCuda cuda(/*everywhere=*/true);
  for (const int64_t count : {3, 8, 19}) {
    const auto numbers = [&] { return at::rand({count}); };
    const AdamWTensors whole{
        .params = numbers(),
        .exp_avg = numbers(),
        .exp_avg_sq = numbers(),
        .grads = numbers(),
        .copy = at::zeros({count}, at::kBFloat16),
        .coefficients = at::tensor({0.9, 0.0, 0.9, 0.95, 0.1, 0.05, 1e-8, 1e-2, 1.1}, at::kFloat),
        .divisor = at::full({}, 2, at::kDouble),
        .skip = at::zeros({})};
    AdamWTensors parts = whole;
    for (at::Tensor* t : {&parts.params, &parts.exp_avg, &parts.exp_avg_sq, &parts.copy})
      *t = t->clone();
    const at::Tensor before = parts.params.clone();
    cuda_runtime().adamw(whole);
    for (int64_t i = 0; i < count; ++i) {
      AdamWTensors one = parts;
      for (at::Tensor* t : {&one.params, &one.exp_avg, &one.exp_avg_sq, &one.grads, &one.copy})
        *t = t->narrow(0, i, 1);
      cuda_runtime().adamw(one);
    }
    EXPECT_FALSE(before.eq(parts.params).any().item<bool>());
    EXPECT_TRUE(at::equal(whole.params, parts.params));
    EXPECT_TRUE(at::equal(whole.exp_avg, parts.exp_avg));
    EXPECT_TRUE(at::equal(whole.exp_avg_sq, parts.exp_avg_sq));
    EXPECT_TRUE(at::equal(whole.copy, parts.params.to(at::kBFloat16)));
  }
}

// If all rows are ignored, the gradient is 0 even where the logits are bad.
TEST(DeviceOps, RowsWithoutTargetHaveNoGradient) {
  const testing::EmulatedCuda cuda(/*everywhere=*/true);
  const at::Tensor logits = at::full({2, 16}, std::nan("")).set_requires_grad(true);
  device::cross_entropy_sum(logits.clone(), at::full({2}, ops::kIgnoredTarget, at::kLong))
      .backward();
  EXPECT_TRUE(logits.grad().eq(0).all().item<bool>());
}

// Meta tensors have no values, so code that reads a value fails here. On a device such code would
// wait for the device.
TEST(DeviceOps, LookAtNoValue) {
  const testing::EmulatedCuda cuda(/*everywhere=*/true);
  const auto meta = [](at::IntArrayRef shape, at::ScalarType type = at::kFloat) {
    return at::zeros(shape, at::TensorOptions(at::kMeta).dtype(type));
  };
  const at::Tensor weight = meta({16, 16}).set_requires_grad(true), angle = meta({2, 5, 4});
  const at::Tensor ids = meta({2, 5}, at::kLong);
  const at::Tensor x = ops::rms_norm(meta({2, 5, 16}), weight[0], 1e-5);
  const at::Tensor q = ops::linears(x, {weight})[0].view({2, 5, 2, 8});
  const at::Tensor rotated = fused::rotary(q, q, angle, angle).q;
  const auto [norm, residual] = device::rms_norm(rotated.flatten(2), weight[0], 1e-5);
  const at::Tensor h = ops::linear_add(residual, norm, weight);
  device::cross_entropy_sum(fused::swiglu(h, x), ids).backward();
  EXPECT_EQ(weight.grad().sizes(), weight.sizes());
}

}  // namespace
}  // namespace yoke
