// Tests fp8 products against a plain version: numbers are decoded from their bits, rounded by a
// search among all of them, and scaled by a loop over powers of two.
#include "core/kernels/fp8.hpp"

#include <ATen/ATen.h>
#include <gtest/gtest.h>
#include <torch/csrc/autograd/autograd.h>

#include <cmath>
#include <limits>
#include <map>

namespace yoke {
namespace {

using ops::Product;
using ops::fp8::Rounding;
using ops::fp8::Scaling;

constexpr double kInfinity = std::numeric_limits<double>::infinity();
constexpr double kNaN = std::numeric_limits<double>::quiet_NaN();

struct Format {
  at::ScalarType type;
  int mantissa, bias;
  double largest;
};
const Format kE4m3{at::kFloat8_e4m3fn, 3, 7, 448}, kE5m2{at::kFloat8_e5m2, 2, 15, 57344};

// Maps the magnitudes that a format has to the last bits of their mantissas.
const std::map<double, int>& magnitudes(const Format& f) {
  static std::map<at::ScalarType, std::map<double, int>> known;
  std::map<double, int>& all = known[f.type];
  const int steps = 1 << f.mantissa;
  for (int bits = 0; all.empty() || all.rbegin()->first < f.largest; ++bits) {
    const int exponent = bits / steps, fraction = bits % steps;
    const double value = exponent == 0
                             ? std::ldexp(fraction, 1 - f.bias - f.mantissa)
                             : std::ldexp(steps + fraction, exponent - f.bias - f.mantissa);
    all[value] = bits & 1;
  }
  return all;
}

// Rounds to the nearest number of the format, ties to even.
double nearest(double x, const Format& f) {
  if (std::isnan(x)) return x;
  const double size = std::min(std::fabs(x), f.largest);
  const auto& all = magnitudes(f);
  const auto above = all.lower_bound(size);
  if (above->first == size) return std::copysign(size, x);
  const auto below = std::prev(above);
  const double up = above->first - size, down = size - below->first;
  const bool take_above = up < down || (up == down && above->second == 0);
  return std::copysign(take_above ? above->first : below->first, x);
}

double plain_scale(double amax, const Format& f) {
  if (std::isnan(amax)) return kNaN;
  if (std::isinf(amax)) return 0;
  double scale = std::ldexp(1.0, 100);
  while (scale * std::max(amax, 1e-12) > f.largest) scale /= 2;
  return scale;
}

at::Tensor tensor_of(const std::vector<double>& values) {
  return at::tensor(values, at::kDouble);
}

void expect_same(const at::Tensor& got, const at::Tensor& expected) {
  EXPECT_EQ(got.scalar_type(), expected.scalar_type());
  EXPECT_EQ(got.sizes(), expected.sizes());
  EXPECT_TRUE(at::allclose(got, expected, 0, 0, /*equal_nan=*/true)) << got << expected;
}

class Fp8Cast : public ::testing::TestWithParam<Format> {};

TEST_P(Fp8Cast, RoundsToNearestEvenAndSaturates) {
  const Format& f = GetParam();
  std::vector<double> inputs{0, -0.0, kNaN, kInfinity, -kInfinity, 1e30, -1e30};
  double last = 0;
  for (const auto& [value, bit] : magnitudes(f)) {
    const double middle = (last + value) / 2;
    for (const double v : {value, middle, middle * (1 + 1e-6), middle * (1 - 1e-6)})
      inputs.insert(inputs.end(), {v, -v});
    last = value;
  }
  for (const double factor : {1.01, 1.03, 1.04, 1.07, 1.2, 2.0})
    inputs.insert(inputs.end(), {f.largest * factor, -f.largest * factor});
  std::vector<double> expected;
  const at::Tensor x = tensor_of(inputs).to(at::kFloat);
  for (int64_t i = 0; i < x.numel(); ++i) expected.push_back(nearest(x[i].item<double>(), f));
  const at::Tensor got = ops::fp8::cast(x, at::ones({}), f.type);
  EXPECT_EQ(got.scalar_type(), f.type);
  expect_same(got.to(at::kDouble), tensor_of(expected));
}

// The reason for the clamp in cast(). If this fails, LibTorch saturates and the clamp can go.
TEST(Fp8, LibTorchItselfDoesNotSaturate) {
  const auto cast = [](double x, at::ScalarType type) {
    return tensor_of({x}).to(type).to(at::kDouble).item<double>();
  };
  EXPECT_EQ(cast(464, at::kFloat8_e4m3fn), 448);
  EXPECT_TRUE(std::isnan(cast(465, at::kFloat8_e4m3fn)));
  EXPECT_TRUE(std::isnan(cast(-kInfinity, at::kFloat8_e4m3fn)));
  EXPECT_TRUE(std::isinf(cast(61441, at::kFloat8_e5m2)));
}

// Backends that gather parameters in fp8 rely on it: what was rounded once is rounded to itself,
// although the largest element, and with it the scale, may have changed.
TEST_P(Fp8Cast, RoundsItsResultsToThemselves) {
  const Format& f = GetParam();
  const Rounding rounding{Scaling::kTensor, f.type};
  for (const at::ScalarType type : {at::kDouble, at::kFloat, at::kBFloat16}) {
    // The mantissas of the largest element pass through several binades.
    for (double amax = f.largest / 8; amax < f.largest * 8; amax *= 1.003) {
      const at::Tensor x = at::randn({40, 40}, at::kDouble).mul(amax / 5).clamp(-amax, amax);
      x[7][9].fill_(amax);
      const at::Tensor once = ops::fp8::rounded(x.to(type), rounding).to(type);
      EXPECT_TRUE(at::equal(ops::fp8::rounded(once, rounding).to(type), once)) << type << amax;
    }
  }
}

TEST_P(Fp8Cast, ScalesAreTheLargestPowersOfTwoThatFit) {
  const Format& f = GetParam();
  std::vector<double> amax{0, 1e-45, 1e-13, 1e-12, 1, 3.7, 447, 448, 449, 1e10, kInfinity, kNaN};
  for (int e = -30; e <= 30; ++e) {
    const double edge = std::ldexp(f.largest, e);
    // In fp32 the logarithms of the first two scales are equal.
    amax.insert(amax.end(), {edge, edge * (1 + 1e-7), edge * (1 + 1e-6), edge * (1 - 1e-6)});
  }
  std::vector<double> expected;
  for (const double a : amax) expected.push_back(plain_scale(a, f));
  const at::Tensor got = ops::fp8::scale_of(tensor_of(amax), f.type);
  EXPECT_EQ(got.scalar_type(), at::kFloat);
  expect_same(got.to(at::kDouble), tensor_of(expected));
}

INSTANTIATE_TEST_SUITE_P(Formats, Fp8Cast, ::testing::Values(kE4m3, kE5m2), [](const auto& info) {
  return std::string(c10::toString(info.param.type));
});

// Rounds a matrix. share: returns whether two elements have one scale.
template <class Share>
at::Tensor plain_rounded(const at::Tensor& matrix, const Format& f, const Share& share) {
  const at::Tensor in = matrix.to(at::kDouble), out = at::empty_like(in);
  const auto x = in.accessor<double, 2>();
  auto y = out.accessor<double, 2>();
  for (int64_t i = 0; i < x.size(0); ++i) {
    for (int64_t j = 0; j < x.size(1); ++j) {
      double amax = 0;
      for (int64_t k = 0; k < x.size(0); ++k) {
        for (int64_t l = 0; l < x.size(1); ++l) {
          if (share(i, j, k, l)) amax = std::max(amax, std::fabs(x[k][l]));
        }
      }
      const double scale = plain_scale(amax, f);
      const double scaled = static_cast<float>(x[i][j]) * scale;
      y[i][j] = nearest(scaled, f) / scale;
    }
  }
  return out.to(matrix.scalar_type() == at::kDouble ? at::kDouble : at::kFloat);
}

at::Tensor by_tensor(const at::Tensor& m, const Format& f) {
  return plain_rounded(m, f, [](auto...) { return true; });
}
at::Tensor by_row(const at::Tensor& m) {
  return plain_rounded(m, kE4m3, [](auto i, auto, auto k, auto) { return i == k; });
}
at::Tensor by_column(const at::Tensor& m) {
  return plain_rounded(m, kE4m3, [](auto, auto j, auto, auto l) { return j == l; });
}

// The outputs and gradients of two linear layers on the same rows.
struct Results {
  std::vector<at::Tensor> y, dw;
  at::Tensor dx;
  std::vector<at::Tensor> leaves;  // the weights that autograd knows
};

Results plain_linears(Product product,
                      const at::Tensor& x,
                      const std::vector<at::Tensor>& weights,
                      const std::vector<at::Tensor>& dy) {
  const at::ScalarType type = x.scalar_type();
  Results out;
  for (size_t i = 0; i < weights.size(); ++i) {
    const at::Tensor &w = weights[i], &d = dy[i];
    at::Tensor dx;
    if (product == Product::kTensorwise) {
      out.y.push_back(at::mm(by_tensor(x, kE4m3), by_tensor(w, kE4m3).t()));
      dx = at::mm(by_tensor(d, kE5m2), by_tensor(w, kE4m3));
      out.dw.push_back(at::mm(by_tensor(d, kE5m2).t(), by_tensor(x, kE4m3)));
    } else {
      const bool plain_dw = product == Product::kRowwiseGwHp;
      out.y.push_back(at::mm(by_row(x), by_row(w).t()));
      dx = at::mm(by_row(d), plain_dw ? by_tensor(w, kE4m3) : by_column(w));
      out.dw.push_back(plain_dw ? at::mm(d.t(), x) : at::mm(by_column(d).t(), by_column(x)));
    }
    out.y.back() = out.y.back().to(type);
    out.dw.back() = out.dw.back().to(type);
    out.dx = out.dx.defined() ? out.dx + dx : dx;
  }
  out.dx = out.dx.to(type);
  return out;
}

using Case = std::tuple<Product, at::ScalarType>;
class Fp8Linears : public ::testing::TestWithParam<Case> {
 protected:
  const Product product = std::get<0>(GetParam());
  const at::ScalarType type = std::get<1>(GetParam());

  void SetUp() override { at::manual_seed(1); }

  // Values over several powers of two, so that some are rounded as subnormal numbers.
  at::Tensor random(at::IntArrayRef shape) const {
    return (at::randn(shape, at::kDouble) * at::exp2(at::randn(shape, at::kDouble) * 4)).to(type);
  }

  // dy: the gradient of each output.
  Results run(const at::Tensor& x,
              const std::vector<at::Tensor>& weights,
              const std::vector<at::Tensor>& dy) const {
    const at::Tensor in = x.clone().set_requires_grad(true);
    Results out;
    std::vector<ops::Matrix> matrices;
    for (const at::Tensor& w : weights) {
      out.leaves.push_back(w.clone().set_requires_grad(true));
      matrices.emplace_back(out.leaves.back(), product);
    }
    out.y = ops::linears(in, matrices);
    torch::autograd::backward(out.y, dy);
    for (const at::Tensor& leaf : out.leaves) out.dw.push_back(leaf.grad());
    out.dx = in.grad();
    return out;
  }
};

void expect_same(const Results& got, const Results& expected) {
  for (size_t i = 0; i < expected.y.size(); ++i) {
    expect_same(got.y[i].flatten(0, -2), expected.y[i]);
    expect_same(got.dw[i], expected.dw[i]);
  }
  expect_same(got.dx.flatten(0, -2), expected.dx);
}

TEST_P(Fp8Linears, EqualThePlainFormulaBitForBit) {
  const at::Tensor rows = random({2, 6, 16});
  const std::vector<at::Tensor> weights{random({8, 16}), random({24, 16})};
  const std::vector<at::Tensor> dy{random({2, 6, 8}), random({2, 6, 24})};
  expect_same(
      run(rows, weights, dy),
      plain_linears(
          product, rows.flatten(0, -2), weights, {dy[0].flatten(0, -2), dy[1].flatten(0, -2)}));
}

TEST_P(Fp8Linears, TakeZeros) {
  const at::Tensor zeros = at::zeros({4, 16}, type);
  expect_same(run(zeros, {zeros}, {at::zeros({4, 4}, type)}),
              plain_linears(product, zeros, {zeros}, {at::zeros({4, 4}, type)}));
}

// A rank may have no tokens at the end of a sequence.
TEST_P(Fp8Linears, TakeNoRows) {
  const at::Tensor weight = random({8, 16});
  const Results got = run(at::zeros({0, 16}, type), {weight}, {at::zeros({0, 8}, type)});
  EXPECT_EQ(got.y[0].sizes(), at::IntArrayRef({0, 8}));
  EXPECT_EQ(got.dx.sizes(), at::IntArrayRef({0, 16}));
  expect_same(got.dw[0], at::zeros_like(weight));
}

// A product with NaN or infinity in an operand must not look sound: the backend finds out that a
// step has failed by the loss or the gradient norm.
TEST_P(Fp8Linears, PassNaNAndInfinityOn) {
  for (const double bad : {kNaN, kInfinity, -kInfinity}) {
    for (const int operand : {0, 1, 2}) {
      at::Tensor rows = random({4, 16}), weight = random({8, 16}), dy = random({4, 8});
      for (const at::Tensor& t : {rows, weight, dy}) t.abs_();
      (operand == 0 ? rows : operand == 1 ? weight : dy)[1][2] = bad;
      const Results got = run(rows, {weight}, {dy});
      const auto finite = [](const at::Tensor& t) { return t.isfinite().all().item<bool>(); };
      EXPECT_EQ(finite(got.y[0]), operand == 2) << bad << operand;
      EXPECT_EQ(finite(got.dx), operand == 0) << bad << operand;
      EXPECT_EQ(finite(got.dw[0]), operand == 1) << bad << operand;
    }
  }
}

// An outlier costs the elements that share its scale their precision. In a row of its own it leaves
// the other rows as they were.
TEST_P(Fp8Linears, KeepAnOutlierInItsRow) {
  at::Tensor rows = at::randn({4, 16}, at::kDouble).to(type);
  const at::Tensor weight = at::randn({8, 16}, at::kDouble).to(type), dy = at::zeros({4, 8}, type);
  const at::Tensor before = run(rows, {weight}, {dy}).y[0];
  rows[0][0] = 1e7;
  const at::Tensor after = run(rows, {weight}, {dy}).y[0];
  EXPECT_TRUE(after.isfinite().all().item<bool>());
  EXPECT_EQ(after.slice(0, 1).equal(before.slice(0, 1)), product != Product::kTensorwise);
}

TEST_P(Fp8Linears, GiveTheSameGradientsLater) {
  const at::Tensor rows = random({4, 16});
  const std::vector<at::Tensor> weights{random({8, 16}), random({8, 16})},
      dy{random({4, 8}), random({4, 8})};
  const Results now = run(rows, weights, dy);
  WeightQueue queue;
  ops::defer_weights(&queue);
  Results later = run(rows, weights, dy);
  ops::defer_weights(nullptr);
  EXPECT_TRUE(later.dx.equal(now.dx));
  for (size_t i = 0; i < weights.size(); ++i) EXPECT_FALSE(later.leaves[i].grad().defined()) << i;
  {
    at::NoGradGuard as_in_a_step;
    queue.run();
  }
  for (size_t i = 0; i < weights.size(); ++i)
    EXPECT_TRUE(later.leaves[i].grad().equal(now.dw[i])) << i;
}

TEST_P(Fp8Linears, MixWithPlainProducts) {
  const at::Tensor rows = random({4, 16}), w = random({8, 16}), v = random({4, 16});
  const auto mixed = ops::linears(rows, {{w, product}, v, {w, product}});
  ASSERT_EQ(mixed.size(), 3u);
  EXPECT_TRUE(mixed[0].equal(ops::linears(rows, {{w, product}})[0]));
  EXPECT_TRUE(mixed[1].equal(ops::linears(rows, {v})[0]));
  EXPECT_TRUE(mixed[2].equal(mixed[0]));
  EXPECT_FALSE(mixed[0].equal(ops::linears(rows, {w})[0]));
}

TEST_P(Fp8Linears, AddTheirResultToTheResidual) {
  const at::Tensor residual = random({4, 8}), rows = random({4, 16}), w = random({8, 16});
  expect_same(ops::linear_add(residual, rows, {w, product}),
              residual + ops::linears(rows, {{w, product}})[0]);
}

std::string case_name(const ::testing::TestParamInfo<Case>& info) {
  const char* const names[] = {"plain", "tensorwise", "rowwise", "rowwise_gw_hp"};
  return std::string(names[static_cast<int>(std::get<0>(info.param))]) +
         c10::toString(std::get<1>(info.param));
}

INSTANTIATE_TEST_SUITE_P(
    Recipes,
    Fp8Linears,
    ::testing::Combine(
        ::testing::Values(Product::kTensorwise, Product::kRowwise, Product::kRowwiseGwHp),
        ::testing::Values(at::kDouble, at::kFloat, at::kBFloat16)),
    case_name);

}  // namespace
}  // namespace yoke
