// Runs the products of a device with emulated kernels: those that are added to a residual, to the
// gradient of another product, or to the sums of a backend.
#include <ATen/ATen.h>
#include <gtest/gtest.h>
#include <torch/csrc/autograd/autograd.h>

#include <array>
#include <cmath>
#include <map>
#include <string>
#include <utility>

#include "core/kernels/ops.hpp"
#include "tests/support/emulated_cuda.hpp"
#include "tests/unit/kernels/ops_fixture.hpp"

namespace yoke {
namespace {

using testing::Inputs;
using testing::Sums;

class DeviceLinearTest : public testing::OpsTest {
  testing::EmulatedCuda cuda_{/*everywhere=*/true};
};

// The gradient of x is added up in a tensor of its type: three roundings.
TEST_P(DeviceLinearTest, LinearsAgree) {
  expect_same(
      [](const Inputs& t) {
        return ops::linears(t[0], {t[1], t[2], t[3]});
      },
      [](const Inputs& t) {
        return ops::composite::linears(t[0], {t[1], t[2], t[3]});
      },
      {random({2, 3, 8}), random({8, 8}), random({4, 8}), random({5, 8})},
      /*slack=*/1,
      /*of_gradients=*/roundings(3));
}

// A bias is added to a rounded sum, and all inputs have two gradients.
TEST_P(DeviceLinearTest, LinearAddAgreesWithAndWithoutBias) {
  expect_same(
      [](const Inputs& t) {
        const ops::Matrix with_bias(t[2], ops::Product::kPlain, t[3]);
        return Inputs{ops::linear_add(t[0], t[1], t[2]), ops::linear_add(t[0], t[1], with_bias)};
      },
      [](const Inputs& t) {
        const at::Tensor sum = ops::composite::linear_add(t[0], t[1], t[2]);
        return Inputs{sum, sum + t[3]};
      },
      {random({2, 3, 6}), random({2, 3, 8}), random({6, 8}), random({6})},
      roundings(2),
      /*of_gradients=*/roundings(3));
}

// A product that is a part of another one may be the residual, as with adapters.
TEST_P(DeviceLinearTest, LinearAddTakesAResidualWithGaps) {
  at::Tensor part;
  expect_same(
      [&](const Inputs& t) {
        part = ops::linears(t[0], {t[1].narrow(0, 0, 6), t[1].narrow(0, 6, 6)})[0];
        return Inputs{ops::linear_add(part, t[0], t[2])};
      },
      [](const Inputs& t) {
        const at::Tensor first = ops::composite::linears(t[0], {t[1].narrow(0, 0, 6)})[0];
        return Inputs{ops::composite::linear_add(first, t[0], t[2])};
      },
      {random({2, 3, 8}), random({12, 8}), random({6, 8})},
      roundings(2),
      /*of_gradients=*/roundings(3));
  EXPECT_EQ(part.stride(1), 12);
}

// The rows of the logits begin 576 elements apart. The loss sees rounded logits.
TEST_P(DeviceLinearTest, TheLossOfAnOddVocabularyAgrees) {
  const at::Tensor targets = at::tensor({3, 0, -100, 12, 7, 1}, at::kLong).view({2, 3});
  const auto loss = [&](const auto& linears, const auto& cross_entropy) {
    return [&](const Inputs& t) { return Inputs{cross_entropy(linears(t), targets)}; };
  };
  at::Tensor logits;
  expect_same(loss([&](const Inputs& t) { return logits = ops::linears(t[0], {t[1]})[0]; },
                   ops::cross_entropy_sum),
              loss([](const Inputs& t) { return ops::composite::linears(t[0], {t[1]})[0]; },
                   ops::composite::cross_entropy_sum),
              {random({2, 3, 16}), random({517, 16}, 0.2)},
              roundings(2),
              /*of_gradients=*/roundings(3));
  EXPECT_EQ(logits.stride(1), 576);
}

// Compares sums of two backwards with the gradients that .grad has without sums, which are rounded.
TEST_P(DeviceLinearTest, GradientsAreAddedToTheSums) {
  const auto type = GetParam();
  const at::ScalarType wide = type == at::kDouble ? at::kDouble : at::kFloat;
  const at::Tensor x = random({2, 3, 8});
  const auto backward = [&](const Inputs& w) {
    const auto [norm, residual] = ops::norm_and_residual(x, w[0], 1e-5);
    const Inputs y = ops::linears(norm, {w[1], w[2]});
    return torch::autograd::backward({ops::linear_add(residual, y[0] * y[1], w[3]).sum()});
  };
  const auto leaves = [](const Inputs& given, at::ScalarType as) {
    Inputs out;
    for (const at::Tensor& t : given) out.push_back(t.to(as).clone().set_requires_grad(true));
    return out;
  };
  const Inputs weights{random({8}), random({4, 8}), random({4, 8}), random({8, 4})};
  for (const at::ScalarType sum_type : {type, wide}) {
    const Inputs low = leaves(weights, type), plain = leaves(weights, type);
    Sums sums;
    for (size_t i = 0; i + 1 < low.size(); ++i) sums.add(low[i], sum_type);
    {
      const HostSetting<GradientSums> scope(ops::add_gradients_to, &sums);
      backward(low);
      backward(low);
    }
    backward(plain);
    for (size_t i = 0; i < low.size(); ++i) {
      const bool has_sum = i + 1 < low.size();
      EXPECT_EQ(low[i].grad().defined(), !has_sum) << i;
      const at::Tensor got =
          has_sum ? sums.sums.at(low[i].unsafeGetTensorImpl()).values : low[i].grad();
      EXPECT_EQ(got.scalar_type(), has_sum ? sum_type : type);
      expect_close(
          got, 2 * plain[i].grad().to(at::kDouble), "gradient " + std::to_string(i), roundings(2));
    }
  }
}

// In bf16, a sum of many equal gradients in fp32 keeps what a sum in bf16 would lose.
TEST(DeviceLinear, SumsAreWiderThanTheGradients) {
  const testing::EmulatedCuda cuda(/*everywhere=*/true);
  const auto options = at::TensorOptions(at::kBFloat16);
  const at::Tensor weight = at::zeros({8, 8}, options).set_requires_grad(true);
  Sums sums;
  const at::Tensor& sum = sums.add(weight, at::kFloat);
  const HostSetting<GradientSums> scope(ops::add_gradients_to, &sums);
  for (int i = 0; i < 1000; ++i)
    torch::autograd::backward({ops::linears(at::ones({1, 1, 8}, options), {weight})[0].sum()});
  EXPECT_TRUE(sum.eq(1000).all().item<bool>());
}

// A gradient that is computed later goes to the sum that is set then.
TEST(DeviceLinear, AQueueAddsToTheSums) {
  const testing::EmulatedCuda cuda(/*everywhere=*/true);
  const at::Tensor weight = at::ones({8, 8}).set_requires_grad(true);
  Sums sums;
  sums.add(weight, at::kFloat);
  WeightQueue queue;
  const auto backward = [&] {
    const HostSetting<WeightQueue> scope(ops::defer_weights, &queue);
    torch::autograd::backward({ops::linears(at::ones({1, 1, 8}), {weight})[0].sum()});
  };
  {
    const HostSetting<GradientSums> scope(ops::add_gradients_to, &sums);
    backward();
    EXPECT_FALSE(sums.of(weight)->written);
    queue.run();
  }
  EXPECT_FALSE(weight.grad().defined());
  EXPECT_TRUE(sums.of(weight)->values.eq(1).all().item<bool>());
  backward();
  queue.run();
  EXPECT_TRUE(weight.grad().eq(1).all().item<bool>());
}

// Matrices whose rows or columns have gaps, dims of size 1, and a sum of another layout.
TEST(DeviceLinear, ProductsTakeRegularMatrices) {
  const testing::EmulatedCuda cuda;
  const auto parts = [](int64_t rows, int64_t columns) {
    const at::Tensor wide = at::randn({rows, columns + 3}), tall = at::randn({columns, rows + 2});
    return std::vector<at::Tensor>{at::randn({rows, columns}),
                                   wide.narrow(1, 1, columns),
                                   at::randn({columns, rows}).t(),
                                   tall.narrow(1, 0, rows).t()};
  };
  for (const auto& [m, k, n] : std::vector<std::array<int64_t, 3>>{
           {5, 7, 4}, {1, 7, 4}, {5, 1, 4}, {5, 7, 1}, {1, 1, 1}, {1, 7, 1}}) {
    for (const at::Tensor& a : parts(m, k)) {
      for (const at::Tensor& b : parts(k, n)) {
        const at::Tensor out = at::zeros({m, n + 5}).narrow(1, 2, n), add = at::randn({m, n});
        cuda_runtime().multiply(out, a, b, {});
        EXPECT_TRUE(at::allclose(out, at::mm(a, b), 1e-5, 1e-6)) << m << k << n;
        cuda_runtime().multiply(out, a, b, add);
        EXPECT_TRUE(at::allclose(out, at::mm(a, b) + add, 1e-5, 1e-6)) << m << k << n;
        cuda_runtime().multiply(out, a, b, out);
        EXPECT_TRUE(at::allclose(out, 2 * at::mm(a, b) + add, 1e-5, 1e-6)) << m << k << n;
      }
    }
  }
}

TEST(DeviceLinear, ProductsRefuseOtherMatrices) {
  const testing::EmulatedCuda cuda;
  const at::Tensor a = at::ones({4, 6}), b = at::ones({6, 8}), out = at::ones({4, 8});
  const auto multiply =
      [](const at::Tensor& to, const at::Tensor& x, const at::Tensor& y, const at::Tensor& add) {
        cuda_runtime().multiply(to, x, y, add);
      };
  EXPECT_NO_THROW(multiply(out, a, b, {}));
  EXPECT_ANY_THROW(multiply(out, a, b.t(), {}));
  EXPECT_ANY_THROW(multiply(out, a, b.to(at::kDouble), {}));
  EXPECT_ANY_THROW(multiply(out.to(at::kDouble), a, b, {}));
  EXPECT_ANY_THROW(multiply(out, a, b, at::ones({8})));
  EXPECT_ANY_THROW(multiply(out, a, b, out.to(at::kBFloat16)));
  EXPECT_ANY_THROW(multiply(out, at::ones({6}).expand({4, 6}), b, {}));          // rows overlap
  EXPECT_ANY_THROW(multiply(out, at::ones({4, 12}).slice(1, 0, 12, 2), b, {}));  // gaps in rows
  EXPECT_ANY_THROW(multiply(at::ones({8, 4}).t(), a, b, {}));
}

INSTANTIATE_TEST_SUITE_P(Types,
                         DeviceLinearTest,
                         ::testing::Values(at::kDouble, at::kFloat, at::kBFloat16, at::kHalf),
                         [](const auto& info) { return std::string(c10::toString(info.param)); });

}  // namespace
}  // namespace yoke
