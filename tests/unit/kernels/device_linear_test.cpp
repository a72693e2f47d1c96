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

class DeviceLinearTest : public testing::OpsTest {
  testing::EmulatedCuda cuda_{/*everywhere=*/true};
};

// The sums of a backend, by parameter.
struct Sums : GradientSums {
  Sum* of(const at::Tensor& weight) override {
    const auto found = sums.find(weight.unsafeGetTensorImpl());
    return found == sums.end() ? nullptr : &found->second;
  }
  at::Tensor& add(const at::Tensor& weight, at::ScalarType type) {
    // Values that count as not written may be anything.
    Sum& sum = sums[weight.unsafeGetTensorImpl()];
    sum.values = at::full(weight.sizes(), std::nan(""), type);
    return sum.values;
  }
  std::map<const c10::TensorImpl*, Sum> sums;
};

TEST_P(DeviceLinearTest, LinearsAgree) {
  expect_same(
      [](const Inputs& t) {
        return ops::linears(t[0], {t[1], t[2], t[3]});
      },
      [](const Inputs& t) {
        return ops::composite::linears(t[0], {t[1], t[2], t[3]});
      },
      {random({2, 3, 8}), random({8, 8}), random({4, 8}), random({5, 8})});
}

using Parts = std::vector<std::pair<int64_t, int>>;  // rows and ops::Matrix::lifetime

// Returns the rows of `all` as matrices that are neighbours in memory.
std::vector<ops::Matrix> neighbours(const at::Tensor& all, const Parts& parts) {
  std::vector<ops::Matrix> matrices;
  int64_t begin = 0;
  for (const auto& [rows, lifetime] : parts) {
    matrices.emplace_back(all.narrow(0, begin, rows)).lifetime = lifetime;
    begin += rows;
  }
  return matrices;
}

// Counts the products that f() makes.
template <class F>
int products_of(const F& f) {
  std::map<std::string, int> launches;
  testing::OnCpu::launches = &launches;
  f();
  testing::OnCpu::launches = nullptr;
  return launches["multiply"];
}

// What the first products of the two halves of a layer are used for. `linears` multiplies by the
// matrices of two tensors.
template <class Linears, class Rotary, class Swiglu>
Inputs uses(const Inputs& t, const Linears& linears, const Rotary& rotary, const Swiglu& swiglu) {
  const Inputs qkv = linears(t[0], t[1], {{8, 1}, {4, 1}, {4, 0}});
  const auto heads = [](const at::Tensor& x) { return x.view({x.size(0), x.size(1), -1, 4}); };
  const auto [q, k] = rotary(heads(qkv[0]), heads(qkv[1]));
  const Inputs hidden = linears(t[0], t[2], {{16, 0}, {16, 0}});
  return {q, k, qkv[2], swiglu(hidden[0], hidden[1])};
}

TEST_P(DeviceLinearTest, ProductsWithNeighboursAgree) {
  const at::ScalarType wide = GetParam() == at::kDouble ? at::kDouble : at::kFloat;
  for (const auto& [batch, tokens] : {std::pair{2, 3}, {2, 1}, {1, 3}, {1, 1}}) {
    const at::Tensor angles = at::randn({batch, tokens, 2}, at::kDouble), cos = angles.cos(),
                     sin = angles.sin();
    expect_same(
        [&](const Inputs& t) {
          return uses(
              t,
              [](const at::Tensor& x, const at::Tensor& all, const Parts& parts) {
                return ops::linears(x, neighbours(all, parts));
              },
              [&](const at::Tensor& q, const at::Tensor& k) {
                return ops::rotary(q, k, cos.to(wide), sin.to(wide));
              },
              ops::swiglu);
        },
        [&](const Inputs& t) {
          return uses(
              t,
              [](const at::Tensor& x, const at::Tensor& all, const Parts& parts) {
                Inputs weights;
                for (const ops::Matrix& m : neighbours(all, parts)) weights.push_back(m.weight);
                return ops::composite::linears(x, weights);
              },
              [&](const at::Tensor& q, const at::Tensor& k) {
                return ops::QueriesAndKeys{ops::composite::rotary(q, cos, sin),
                                           ops::composite::rotary(k, cos, sin)};
              },
              ops::composite::swiglu);
        },
        {random({batch, tokens, 8}), random({16, 8}), random({32, 8})});
  }
}

TEST_P(DeviceLinearTest, NeighboursAreMultipliedTogetherIfTheirProductsHaveOneLifetime) {
  const at::Tensor x = random({2, 3, 8}), all = random({16, 8});
  Inputs y;
  const auto products = [&](const Parts& parts) {
    return products_of([&] { y = ops::linears(x, neighbours(all, parts)); });
  };
  EXPECT_EQ(products({{8, 0}, {4, 0}, {4, 0}}), 1);
  EXPECT_TRUE(y[0].is_alias_of(y[2]));
  EXPECT_EQ(products({{8, 1}, {4, 1}, {4, 0}}), 2);
  EXPECT_TRUE(y[0].is_alias_of(y[1]));
  EXPECT_FALSE(y[0].is_alias_of(y[2]));
  EXPECT_EQ(products({{8, 0}, {4, 1}, {4, 1}}), 2);
  EXPECT_EQ(products({{8, 1}, {4, 0}, {4, 1}}), 3);
  EXPECT_EQ(products_of([&] {
              ops::linears(x, {all.narrow(0, 8, 8), all.narrow(0, 0, 8)});
            }),
            2)
      << "in the other order they are no neighbours";
}

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
      {random({2, 3, 6}), random({2, 3, 8}), random({6, 8}), random({6})});
}

// A product that is a part of another one may be the residual, as with adapters.
TEST_P(DeviceLinearTest, LinearAddTakesAResidualWithGaps) {
  at::Tensor part;
  expect_same(
      [&](const Inputs& t) {
        part = ops::linears(t[0], neighbours(t[1], {{6, 0}, {6, 0}}))[0];
        return Inputs{ops::linear_add(part, t[0], t[2])};
      },
      [](const Inputs& t) {
        const at::Tensor first = ops::composite::linears(t[0], {t[1].narrow(0, 0, 6)})[0];
        return Inputs{ops::composite::linear_add(first, t[0], t[2])};
      },
      {random({2, 3, 8}), random({12, 8}), random({6, 8})});
  EXPECT_EQ(part.stride(1), 12);
}

// The rows of the logits begin 576 elements apart.
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
              {random({2, 3, 16}), random({517, 16})});
  EXPECT_EQ(logits.stride(1), 576);
}

// Compares sums of two backwards with the gradients that .grad has without sums.
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
      expect_close(got, 2 * plain[i].grad().to(at::kDouble), "gradient " + std::to_string(i));
    }
  }
}

// The backward multiplies by the weights of gate and up together, and adds both gradients to their
// sums together, if the sums are neighbours in the same state.
TEST_P(DeviceLinearTest, GradientsOfNeighboursAreAddedTogether) {
  const at::Tensor x = random({2, 3, 8}), all = random({32, 8});
  const auto leaf = [](const at::Tensor& t) { return t.detach().set_requires_grad(true); };
  const Inputs w{leaf(all.narrow(0, 0, 16)), leaf(all.narrow(0, 16, 16))};
  const Inputs apart{leaf(w[0].clone()), leaf(w[1].clone())};
  const auto backward = [&](const Inputs& weights) {
    const Inputs y = ops::linears(leaf(x), {weights[0], weights[1]});
    torch::autograd::backward({ops::swiglu(y[0], y[1]).sum()});
  };
  backward(apart);
  const at::ScalarType wide = GetParam() == at::kDouble ? at::kDouble : at::kFloat;
  const at::Tensor flat = at::full({32, 8}, std::nan(""), wide);
  Sums sums;
  for (size_t i = 0; i < w.size(); ++i) {
    sums.add(w[i], wide);
    sums.of(w[i])->values = flat.narrow(0, 16 * static_cast<int64_t>(i), 16);
  }
  const auto expect_sums = [&](double first, double second) {
    expect_close(sums.of(w[0])->values, first * apart[0].grad().to(at::kDouble), "gate");
    expect_close(sums.of(w[1])->values, second * apart[1].grad().to(at::kDouble), "up");
  };
  const HostSetting<GradientSums> scope(ops::add_gradients_to, &sums);
  EXPECT_EQ(products_of([&] { backward(w); }), 3);
  EXPECT_EQ(products_of([&] { backward(w); }), 3);
  expect_sums(2, 2);
  sums.of(w[1])->written = false;
  EXPECT_EQ(products_of([&] { backward(w); }), 4);
  expect_sums(3, 1);
  WeightQueue queue;
  {
    const HostSetting<WeightQueue> later(ops::defer_weights, &queue);
    EXPECT_EQ(products_of([&] { backward(w); }), 2);
  }
  queue.run();
  expect_sums(4, 2);
}

// The gradient of x by two products together is added to that by a product before them.
TEST_P(DeviceLinearTest, AJointGradientIsAddedToAnother) {
  const auto use = [](const Inputs& y, const auto& swiglu) {
    return Inputs{y[0], swiglu(y[1], y[2])};
  };
  expect_same(
      [&](const Inputs& t) {
        return use(ops::linears(t[0], neighbours(t[1], {{8, 1}, {16, 0}, {16, 0}})), ops::swiglu);
      },
      [&](const Inputs& t) {
        const Inputs weights{t[1].narrow(0, 0, 8), t[1].narrow(0, 8, 16), t[1].narrow(0, 24, 16)};
        return use(ops::composite::linears(t[0], weights), ops::composite::swiglu);
      },
      {random({2, 3, 8}), random({40, 8})});
}

// Neighbours of which only one is trained: their gradients are not multiplied together.
TEST_P(DeviceLinearTest, GradientsOfNeighboursMayBeWantedForOneOnly) {
  const at::Tensor x = random({2, 3, 8}), all = random({40, 8});
  const auto leaf = [](const at::Tensor& t, bool trained = true) {
    return t.detach().set_requires_grad(trained);
  };
  const auto backward = [&](const Inputs& w) {
    const at::Tensor input = leaf(x.clone());
    const Inputs y = ops::linears(input, {w[0], w[1], w[2]});
    torch::autograd::backward({ops::swiglu(y[1], y[2]).sum() + y[0].sum()});
    return input.grad();
  };
  const auto parts = [&](const at::Tensor& of, bool trained) {
    return Inputs{
        leaf(of.narrow(0, 0, 8)), leaf(of.narrow(0, 8, 16), trained), leaf(of.narrow(0, 24, 16))};
  };
  const Inputs w = parts(all, false), wide = parts(all.to(at::kDouble), true);
  const at::Tensor dx = backward(w);
  const at::Tensor input = leaf(x.to(at::kDouble));
  const Inputs y = ops::composite::linears(input, wide);
  torch::autograd::backward({ops::composite::swiglu(y[1], y[2]).sum() + y[0].sum()});
  expect_close(dx, input.grad(), "input");
  EXPECT_FALSE(w[1].grad().defined());
  expect_close(w[0].grad(), wide[0].grad(), "first");
  expect_close(w[2].grad(), wide[2].grad(), "last");
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
