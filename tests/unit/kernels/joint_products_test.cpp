// Products by weights that are neighbours in memory, on the CPU and on an emulated device.
#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include <cmath>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include "core/kernels/cpu_products.hpp"
#include "core/kernels/ops.hpp"
#include "tests/support/emulated_cuda.hpp"
#include "tests/unit/kernels/ops_fixture.hpp"

namespace yoke {
namespace {

using testing::Inputs;
using testing::Sums;

using JointProductsTest = testing::OpsTest;

template <class F>
void on_cpu_and_device(const F& test) {
  {
    SCOPED_TRACE("on the CPU");
    test();
  }
  SCOPED_TRACE("on an emulated device");
  const testing::EmulatedCuda cuda(/*everywhere=*/true);
  test();
}

at::Tensor leaf(const at::Tensor& t, bool trained = true) {
  return t.detach().set_requires_grad(trained);
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

// What reads the products reads rounded ones, and the gradients of x are added up.
TEST_P(JointProductsTest, ProductsWithNeighboursAgree) {
  const at::ScalarType wide = GetParam() == at::kDouble ? at::kDouble : at::kFloat;
  for (const auto& [batch, tokens] : {std::pair{2, 3}, {2, 1}, {1, 3}, {1, 1}}) {
    const at::Tensor angles = at::randn({batch, tokens, 2}, at::kDouble), cos = angles.cos(),
                     sin = angles.sin();
    on_cpu_and_device([&] {
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
          {random({batch, tokens, 8}), random({16, 8}), random({32, 8})},
          roundings(3),
          /*of_gradients=*/roundings(4));
    });
  }
}

TEST_P(JointProductsTest, NeighboursAreMultipliedTogetherIfTheirProductsHaveOneLifetime) {
  const at::Tensor x = random({2, 3, 8}), all = random({16, 8});
  // Returns which products share the memory of the first one.
  const auto joined = [&](const std::vector<ops::Matrix>& matrices) {
    const Inputs y = ops::linears(x, matrices);
    return std::pair{y[1].is_alias_of(y[0]), y.back().is_alias_of(y[0])};
  };
  on_cpu_and_device([&] {
    EXPECT_EQ(joined(neighbours(all, {{8, 0}, {4, 0}, {4, 0}})), (std::pair{true, true}));
    EXPECT_EQ(joined(neighbours(all, {{8, 1}, {4, 1}, {4, 0}})), (std::pair{true, false}));
    EXPECT_EQ(joined(neighbours(all, {{8, 0}, {4, 1}, {4, 1}})), (std::pair{false, false}));
    EXPECT_EQ(joined(neighbours(all, {{8, 1}, {4, 0}, {4, 1}})), (std::pair{false, false}));
    EXPECT_EQ(joined({all.narrow(0, 8, 8), all.narrow(0, 0, 8)}), (std::pair{false, false}))
        << "in the other order they are no neighbours";
  });
}

// A pipeline defers some gradients, and only the first gradient of a sum is written to it. All of
// them must have the same bits. The product of two weights is large enough for oneDNN, and that of
// one is not, so in fp32 they round differently where the worker uses oneDNN.
TEST_P(JointProductsTest, GradientsDoNotDependOnWhereTheyGo) {
  ops::use_fast_cpu_products();
  const at::Tensor x = random({8, 128, 24}), all = random({64, 24});
  const auto gradients = [&](bool later, bool to_sums, bool written) {
    const Inputs w{leaf(all.narrow(0, 0, 32)), leaf(all.narrow(0, 32, 32))};
    const at::Tensor flat = at::zeros_like(all);
    Sums sums;
    for (size_t i = 0; i < w.size(); ++i)
      sums.sums[w[i].unsafeGetTensorImpl()] = {flat.narrow(0, 32 * static_cast<int64_t>(i), 32),
                                               written};
    const HostSetting<GradientSums> scope(ops::add_gradients_to, to_sums ? &sums : nullptr);
    WeightQueue queue;
    {
      const HostSetting<WeightQueue> wait(ops::defer_weights, later ? &queue : nullptr);
      const Inputs y = ops::linears(leaf(x), {w[0], w[1]});
      torch::autograd::backward({ops::swiglu(y[0], y[1]).sum()});
    }
    const at::NoGradGuard no_grad;
    queue.run();
    for (size_t i = 0; i < w.size(); ++i) {
      if (w[i].grad().defined()) sums.of(w[i])->add(w[i].grad());
    }
    return flat;
  };
  on_cpu_and_device([&] {
    const at::Tensor expected = gradients(false, false, false);
    for (const bool later : {false, true}) {
      for (const bool to_sums : {false, true}) {
        for (const bool written : {false, true}) {
          EXPECT_TRUE(at::equal(gradients(later, to_sums, written), expected))
              << later << to_sums << written;
        }
      }
    }
  });
}

// The backward multiplies by the weights of gate and up together, and adds both gradients to their
// sums together, if the sums are neighbours in the same state.
TEST_P(JointProductsTest, GradientsOfNeighboursAreAddedTogether) {
  const testing::EmulatedCuda cuda(/*everywhere=*/true);
  const at::Tensor x = random({2, 3, 8}), all = random({32, 8});
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
    // The gradients that are expected are rounded.
    const auto wide_of = [&](int i) { return apart[i].grad().to(at::kDouble); };
    expect_close(sums.of(w[0])->values, first * wide_of(0), "gate", roundings(2));
    expect_close(sums.of(w[1])->values, second * wide_of(1), "up", roundings(2));
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
TEST_P(JointProductsTest, AJointGradientIsAddedToAnother) {
  const auto use = [](const Inputs& y, const auto& swiglu) {
    return Inputs{y[0], swiglu(y[1], y[2])};
  };
  on_cpu_and_device([&] {
    expect_same(
        [&](const Inputs& t) {
          return use(ops::linears(t[0], neighbours(t[1], {{8, 1}, {16, 0}, {16, 0}})), ops::swiglu);
        },
        [&](const Inputs& t) {
          const Inputs weights{t[1].narrow(0, 0, 8), t[1].narrow(0, 8, 16), t[1].narrow(0, 24, 16)};
          return use(ops::composite::linears(t[0], weights), ops::composite::swiglu);
        },
        {random({2, 3, 8}), random({40, 8})},
        roundings(2),
        /*of_gradients=*/roundings(3));
  });
}

// Neighbours of which only one is trained: their gradients are not multiplied together.
TEST_P(JointProductsTest, GradientsOfNeighboursMayBeWantedForOneOnly) {
  const at::Tensor x = random({2, 3, 8}), all = random({40, 8});
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
  const Inputs wide = parts(all.to(at::kDouble), true);
  const at::Tensor input = leaf(x.to(at::kDouble));
  const Inputs y = ops::composite::linears(input, wide);
  torch::autograd::backward({ops::composite::swiglu(y[1], y[2]).sum() + y[0].sum()});
  on_cpu_and_device([&] {
    const Inputs w = parts(all, false);
    expect_close(backward(w), input.grad(), "input", roundings(3));
    EXPECT_FALSE(w[1].grad().defined());
    expect_close(w[0].grad(), wide[0].grad(), "first");
    expect_close(w[2].grad(), wide[2].grad(), "last", roundings(3));  // rounded products
  });
}

INSTANTIATE_TEST_SUITE_P(Types,
                         JointProductsTest,
                         ::testing::Values(at::kDouble, at::kFloat, at::kBFloat16, at::kHalf),
                         [](const auto& info) { return std::string(c10::toString(info.param)); });

}  // namespace
}  // namespace yoke
