// Compares implementations of an operator in each floating-point type.
#pragma once

#include <ATen/ATen.h>
#include <gtest/gtest.h>
#include <torch/csrc/autograd/autograd.h>

#include <cmath>
#include <functional>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "yoke/torch.hpp"

namespace yoke::testing {

using Inputs = std::vector<at::Tensor>;
using Op = std::function<Inputs(const Inputs&)>;

// The error of computing in fp64, and in fp32 for all other types, in units of the largest number.
inline double tolerance(at::ScalarType type) {
  return type == at::kDouble ? 1e-13 : 1e-6;
}

// The error of rounding a number to 16 bits, in units of this number.
inline double rounding(at::ScalarType type) {
  return type == at::kBFloat16 ? 0x1p-8 : type == at::kHalf ? 0x1p-11 : 0;
}

class OpsTest : public ::testing::TestWithParam<at::ScalarType> {
 protected:
  void SetUp() override { at::manual_seed(1); }

  at::Tensor random(at::IntArrayRef shape, double scale = 1) {
    return (at::randn(shape, at::kDouble) * scale).to(GetParam());
  }

  // Returns the slack of an operator that rounds so many times to the type of the test.
  double roundings(double count) const { return rounding(GetParam()) > 0 ? count : 1; }

  // Compares the fused operator, in the type of the test, with the composition in fp64: the
  // outputs, and the gradients of a random weighted sum of all outputs. slack: of the outputs, see
  // expect_close(). of_gradients: that of the gradients, if it is another one.
  void expect_same(const Op& fused,
                   const Op& composite,
                   const Inputs& inputs,
                   double slack = 1,
                   std::optional<double> of_gradients = {}) {
    Inputs low, high, grads;
    for (const at::Tensor& t : inputs) {
      low.push_back(t.clone().set_requires_grad(t.is_floating_point()));
      high.push_back((t.is_floating_point() ? t.to(at::kDouble) : t)
                         .clone()
                         .set_requires_grad(t.is_floating_point()));
    }
    const Inputs got = fused(low), expected = composite(high);
    ASSERT_EQ(got.size(), expected.size());
    Inputs weights, wide_weights;
    for (size_t i = 0; i < got.size(); ++i) {
      EXPECT_EQ(got[i].sizes(), expected[i].sizes());
      expect_close(got[i], expected[i], "output " + std::to_string(i), slack);
      weights.push_back(at::randn(got[i].sizes(), at::kDouble).to(got[i].scalar_type()));
      wide_weights.push_back(weights.back().to(at::kDouble));
    }
    torch::autograd::backward(got, weights);
    torch::autograd::backward(expected, wide_weights);
    for (size_t i = 0; i < inputs.size(); ++i) {
      if (!inputs[i].is_floating_point()) continue;
      ASSERT_TRUE(low[i].grad().defined());
      EXPECT_EQ(low[i].grad().scalar_type(), low[i].scalar_type());
      expect_close(low[i].grad(),
                   high[i].grad(),
                   "gradient " + std::to_string(i),
                   of_gradients.value_or(slack));
    }
  }

  // With slack 1, numbers of 16 bits must be those of an operator that computes in fp32 and rounds
  // each result once. slack: factor of the tolerance, and number of roundings to the type of the
  // test. An intermediate result may be as large as the largest result.
  void expect_close(const at::Tensor& got,
                    const at::Tensor& expected,
                    const std::string& what,
                    double slack = 1) {
    const at::ScalarType type = GetParam();
    const double size = expected.abs().max().item<double>();
    const at::Tensor error =
        (got.to(at::kDouble) - expected).abs() - rounding(got.scalar_type()) * expected.abs();
    EXPECT_LE(error.max().item<double>(),
              (slack * tolerance(type) + (slack - 1) * rounding(type)) * size)
        << what;
  }
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

}  // namespace yoke::testing
