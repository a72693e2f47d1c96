// Runs the threads of the device kernel that rounds matrices one after the other on the CPU, and
// compares the results with the emulation, bit for bit.
#include "core/cuda/fp8_cast.hpp"

#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include <limits>
#include <vector>

#include "core/kernels/fp8.hpp"
#include "core/kernels/fp8_operand.hpp"

namespace yoke {
namespace {

using ops::fp8::Factor;
using ops::fp8::Rounding;
using ops::fp8::Scaling;

constexpr float kInfinity = std::numeric_limits<float>::infinity();

struct Case {
  at::ScalarType type = at::kFloat8_e4m3fn;
  Scaling as_is = Scaling::kTensor, transposed = Scaling::kTensor;  // kNone = not wanted
};

float limit_of(at::ScalarType type) {
  return type == at::kFloat8_e5m2 ? 57344 : 448;
}

// Finds the largest elements by a plain loop, and returns the scales.
Factor scaled(const at::Tensor& x, const Case& c, Scaling scaling, at::Tensor* scales) {
  const bool columns = scaling == Scaling::kColumn, all = scaling == Scaling::kTensor;
  const int64_t lines = all ? 1 : x.size(columns ? 1 : 0);
  std::vector<uint32_t> amax(lines);
  const auto in = x.accessor<at::BFloat16, 2>();
  for (int64_t i = 0; i < x.size(0); ++i) {
    for (int64_t j = 0; j < x.size(1); ++j) {
      uint32_t& largest = amax[all ? 0 : columns ? j : i];
      largest = std::max(largest, fp8_cast::size_bits(in[i][j]));
    }
  }
  *scales = at::empty({lines}, at::kFloat);
  Factor out;
  out.unscale = all ? at::empty({1}, at::kFloat) : at::empty({lines, 1}, at::kFloat);
  const fp8_cast::Scales put{amax.data(),
                             scales->data_ptr<float>(),
                             out.unscale.data_ptr<float>(),
                             lines,
                             limit_of(c.type)};
  for (int64_t i = 0; i < lines; ++i) put.put(i);
  return out;
}

// Returns what DeviceRuntime::round_to_fp8() computes. Memory that the kernel has to write is
// filled with NaN before.
template <class Q>
ops::fp8::Factors round_by_threads(const at::Tensor& x, const Case& c) {
  at::Tensor scales[2];
  ops::fp8::Factors out;
  fp8_cast::Matrix<at::BFloat16, Q> matrix{
      x.const_data_ptr<at::BFloat16>(), x.size(0), x.size(1), {}, {}};
  const auto target =
      [&](Factor& factor, int which, Scaling scaling, int64_t lines, int64_t length) {
        if (scaling == Scaling::kNone) return fp8_cast::Target<Q>();
        factor = scaled(x, c, scaling, &scales[which]);
        const int64_t stride = (length + 15) / 16 * 16;
        factor.numbers = at::full({lines, stride}, 0x7f, at::kByte).view(c.type);
        return fp8_cast::Target<Q>{static_cast<Q*>(factor.numbers.data_ptr()),
                                   scales[which].const_data_ptr<float>(),
                                   scaling != Scaling::kTensor,
                                   stride};
      };
  matrix.as_is = target(out.as_is, 0, c.as_is, x.size(0), x.size(1));
  matrix.transposed = target(out.transposed, 1, c.transposed, x.size(1), x.size(0));
  for (int64_t down = 0; down < matrix.tiles_down(); ++down) {
    for (int64_t across = 0; across < matrix.tiles_across(); ++across) {
      fp8_cast::Tile<Q> tile;
      for (int t = 0; t < fp8_cast::kThreads; ++t) matrix.load(down, across, t, tile);
      for (int t = 0; t < fp8_cast::kThreads; ++t) matrix.store(down, across, t, tile);
    }
  }
  return out;
}

ops::fp8::Factors round_by_threads(const at::Tensor& x, const Case& c) {
  return c.type == at::kFloat8_e5m2 ? round_by_threads<at::Float8_e5m2>(x, c)
                                    : round_by_threads<at::Float8_e4m3fn>(x, c);
}

at::Tensor represented(const Factor& factor) {
  return factor.numbers.to(at::kFloat) * factor.unscale;
}

void expect_same(const at::Tensor& got, const at::Tensor& expected) {
  EXPECT_TRUE(at::allclose(got, expected, 0, 0, /*equal_nan=*/true)) << got << expected;
}

void expect_like_emulation(const at::Tensor& x, const Case& c) {
  SCOPED_TRACE(testing::Message() << x.sizes() << c.type << static_cast<int>(c.as_is)
                                  << static_cast<int>(c.transposed));
  const ops::fp8::Factors got = round_by_threads(x, c);
  if (c.as_is != Scaling::kNone) {
    expect_same(represented(got.as_is), ops::fp8::rounded(x, {c.as_is, c.type}));
  } else {
    EXPECT_FALSE(got.as_is.numbers.defined());
  }
  if (c.transposed == Scaling::kNone) return;
  const at::Tensor all = represented(got.transposed);
  expect_same(all.narrow(1, 0, x.size(0)), ops::fp8::rounded(x, {c.transposed, c.type}).t());
  const at::Tensor padding = got.transposed.numbers.view(at::kByte).slice(1, x.size(0));
  EXPECT_TRUE(padding.eq(0).all().item<bool>()) << padding;
}

std::vector<Case> cases() {
  std::vector<Case> all;
  for (const at::ScalarType type : {at::kFloat8_e4m3fn, at::kFloat8_e5m2}) {
    for (const Scaling as_is : {Scaling::kNone, Scaling::kTensor, Scaling::kRow}) {
      for (const Scaling transposed : {Scaling::kNone, Scaling::kTensor, Scaling::kColumn})
        all.push_back({type, as_is, transposed});
    }
  }
  return all;
}

at::Tensor random(int64_t rows, int64_t columns) {
  const at::Tensor sizes = at::exp2(at::randn({rows, columns}, at::kDouble) * 6);
  return (at::randn({rows, columns}, at::kDouble) * sizes).to(at::kBFloat16);
}

TEST(Fp8DeviceCast, RoundsLikeTheEmulation) {
  at::manual_seed(1);
  for (const int64_t rows : {1, 3, 16, 63, 64, 130}) {
    for (const int64_t columns : {16, 64, 144}) {
      for (const Case& c : cases()) expect_like_emulation(random(rows, columns), c);
    }
  }
}

TEST(Fp8DeviceCast, PassesNaNAndInfinityOnAndPadsWithZeros) {
  for (const float bad : {std::numeric_limits<float>::quiet_NaN(), kInfinity, -kInfinity}) {
    for (const int64_t row : {0, 2}) {
      at::Tensor x = random(3, 16);
      x[row][5] = bad;
      for (const Case& c : cases()) expect_like_emulation(x, c);
    }
  }
}

TEST(Fp8DeviceCast, FindsTheScaleOfTheEmulation) {
  std::vector<float> amax{0, 1e-45f, 1e-13f, 1e-12f, 1, 447, 448, 449, 3e38f, kInfinity};
  for (int e = -40; e <= 40; ++e) {
    const float edge = std::ldexp(448.0f, e);
    amax.insert(amax.end(), {edge, std::nextafter(edge, 0.0f), std::nextafter(edge, kInfinity)});
  }
  amax.push_back(std::numeric_limits<float>::quiet_NaN());
  const at::Tensor expected = ops::fp8::scale_of(at::tensor(amax), at::kFloat8_e4m3fn);
  std::vector<float> got;
  for (const float a : amax) got.push_back(fp8_cast::scale_of(fp8_cast::size_bits(a), 448));
  expect_same(at::tensor(got), expected);
}

// LibTorch multiplies fp8 matrices with one scale on the CPU as well.
TEST(Fp8DeviceCast, ProductsOfRoundedMatricesEqualEmulatedOnes) {
  at::manual_seed(2);
  const at::Tensor dy = random(20, 32), x = random(20, 48);
  const Factor a = round_by_threads(dy, {at::kFloat8_e5m2, Scaling::kNone}).transposed;
  const Factor b = round_by_threads(x, {at::kFloat8_e4m3fn, Scaling::kNone}).transposed;
  const at::Tensor got = ops::fp8::product(a, b, at::kFloat, /*fast=*/false);
  const at::Tensor expected =
      at::mm(ops::fp8::rounded(dy, {Scaling::kTensor, at::kFloat8_e5m2}).t(),
             ops::fp8::rounded(x, {Scaling::kTensor}));
  EXPECT_TRUE(at::allclose(got, expected, 1e-5, 1e-4 * expected.abs().max().item<double>()));
}

}  // namespace
}  // namespace yoke
