// Compares products in fp8 on a GPU with their emulation.
#include <ATen/ATen.h>
#include <gtest/gtest.h>
#include <torch/csrc/autograd/autograd.h>

#include <memory>
#include <tuple>
#include <vector>

#include "core/cuda/rank_device.hpp"
#include "core/kernels/fp8.hpp"
#include "core/kernels/fp8_operand.hpp"
#include "core/kernels/ops.hpp"
#include "tests/support/gpu.hpp"

namespace yoke::testing {
namespace {

using ops::Product;
using ops::fp8::Factor;
using ops::fp8::Rounding;
using ops::fp8::Scaling;

// The sums of a GPU have fewer bits than those of the emulation.
constexpr double kProductBound = 2e-2;

class Fp8OnGpu : public ::testing::Test {
 protected:
  void SetUp() override {
    YOKE_REQUIRE_GPU();
    rank_ = std::make_unique<RankDevice>(0);
    if (!rank_->runtime().multiplies_fp8(rank_->device())) GTEST_SKIP() << "no fp8 units";
    at::manual_seed(1);
  }
  // Returns bf16 numbers on the CPU.
  static at::Tensor random(at::IntArrayRef shape) {
    return (at::randn(shape) * at::exp2(at::randn(shape) * 3)).to(at::kBFloat16);
  }
  at::Tensor on_gpu(const at::Tensor& t) const { return t.to(rank_->device()); }

  std::unique_ptr<RankDevice> rank_;
};

at::Tensor represented(const Factor& factor) {
  return (factor.numbers.to(at::kFloat) * factor.unscale).cpu();
}

// Returns |a - b| / |b| with the norm of the whole tensors.
double distance(const at::Tensor& a, const at::Tensor& b) {
  const at::Tensor wide = b.to(at::kDouble);
  return ((a.cpu().to(at::kDouble) - wide).norm() / wide.norm()).item<double>();
}

TEST_F(Fp8OnGpu, RoundsBitForBitLikeTheEmulation) {
  for (const int64_t rows : {1, 3, 64, 130, 2048}) {
    for (const int64_t columns : {16, 64, 144, 4096}) {
      for (const at::ScalarType type : {at::kFloat8_e4m3fn, at::kFloat8_e5m2}) {
        for (const bool whole : {true, false}) {
          SCOPED_TRACE(::testing::Message() << rows << " x " << columns << " " << type << whole);
          const Rounding by_rows{whole ? Scaling::kTensor : Scaling::kRow, type};
          const Rounding by_columns{whole ? Scaling::kTensor : Scaling::kColumn, type};
          const at::Tensor x = random({rows, columns});
          const auto got = ops::fp8::factors(on_gpu(x), &by_rows, &by_columns);
          ASSERT_TRUE(got.as_is.is_fp8() && got.transposed.is_fp8());
          EXPECT_TRUE(represented(got.as_is).equal(ops::fp8::rounded(x, by_rows)));
          const at::Tensor transposed = represented(got.transposed);
          EXPECT_TRUE(transposed.narrow(1, 0, rows).equal(ops::fp8::rounded(x, by_columns).t()));
          EXPECT_EQ(transposed.slice(1, rows).count_nonzero().item<int64_t>(), 0);
        }
      }
    }
  }
}

using Results = std::vector<at::Tensor>;

// Returns the outputs and gradients of two linear layers on the same rows.
Results run(const Results& given, Product product) {
  Results leaves;
  for (size_t i = 0; i < 3; ++i) leaves.push_back(given[i].clone().set_requires_grad(true));
  Results out = ops::linears(leaves[0], {{leaves[1], product}, {leaves[2], product}});
  torch::autograd::backward(out, {given[3], given[4]});
  for (const at::Tensor& leaf : leaves) out.push_back(leaf.grad());
  return out;
}

TEST_F(Fp8OnGpu, LinearLayersAgreeWithTheEmulation) {
  for (const Product product : {Product::kTensorwise, Product::kRowwise, Product::kRowwiseGwHp}) {
    for (const int64_t tokens : {16, 40, 1024}) {  // 40 is not a multiple of 16
      const Results cpu{random({tokens, 256}),
                        random({128, 256}),
                        random({48, 256}),
                        random({tokens, 128}),
                        random({tokens, 48})};
      Results gpu;
      for (const at::Tensor& t : cpu) gpu.push_back(on_gpu(t));
      const Results expected = run(cpu, product), got = run(gpu, product);
      for (size_t i = 0; i < expected.size(); ++i) {
        EXPECT_EQ(got[i].scalar_type(), at::kBFloat16);
        EXPECT_LE(distance(got[i], expected[i]), kProductBound)
            << "result " << i << ", " << tokens << " tokens, product " << static_cast<int>(product);
      }
    }
  }
}

TEST_F(Fp8OnGpu, NaNAndInfinityArePassedOn) {
  for (const double bad : {std::nan(""), std::numeric_limits<double>::infinity()}) {
    Results cpu{
        random({16, 32}), random({16, 32}), random({16, 32}), random({16, 16}), random({16, 16})};
    cpu[0][3][5] = bad;
    Results gpu;
    for (const at::Tensor& t : cpu) gpu.push_back(on_gpu(t));
    EXPECT_FALSE(run(gpu, Product::kTensorwise)[0].isfinite().any().item<bool>());
    const at::Tensor by_row = run(gpu, Product::kRowwise)[0].isfinite().all(1).cpu();
    for (int64_t row = 0; row < 16; ++row) EXPECT_EQ(by_row[row].item<bool>(), row != 3) << row;
  }
}

}  // namespace
}  // namespace yoke::testing
