#include "core/comm/local_reduce.hpp"

#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include <cmath>
#include <limits>

#include "yoke/error.hpp"

namespace yoke {
namespace {

using RedOp = c10d::ReduceOp::RedOpType;

struct Case {
  at::ScalarType dtype;
  RedOp op;
};

class LocalReduce : public ::testing::TestWithParam<Case> {};

at::Tensor input(at::ScalarType dtype, int rank, int64_t n) {
  at::Tensor t = at::empty({n}, at::kDouble);
  for (int64_t i = 0; i < n; ++i)
    t.data_ptr<double>()[i] = static_cast<double>((rank * 5 + i * 3) % 11);
  return t.to(dtype);
}

TEST_P(LocalReduce, MatchesThePlainLoopWithinItsRangeOnly) {
  const auto [dtype, op] = GetParam();
  constexpr int64_t n = 2500, begin = 7, count = 2400;  // more than two tiles, unaligned
  for (const int ranks : {1, 2, 3, 5}) {
    std::vector<at::Tensor> inputs;
    ReduceBuffers buffers{{}, {}, dtype, op};
    for (int r = 0; r < ranks; ++r) {
      inputs.push_back(input(dtype, r, n));
      buffers.sources.push_back(inputs.back().data_ptr());
    }
    at::Tensor out = at::zeros({n}, at::TensorOptions(dtype));
    buffers.targets = {inputs[0].data_ptr(), out.data_ptr()};  // the first one in place
    at::Tensor expected = at::zeros({n}, at::kDouble);
    for (int64_t i = begin; i < begin + count; ++i) {
      double sum = 0, low = 1e9, high = -1;
      for (int r = 0; r < ranks; ++r) {
        const double v = static_cast<double>((r * 5 + i * 3) % 11);
        sum += v;
        low = std::min(low, v);
        high = std::max(high, v);
      }
      expected.data_ptr<double>()[i] = op == RedOp::SUM   ? sum
                                       : op == RedOp::AVG ? sum / ranks
                                       : op == RedOp::MAX ? high
                                                          : low;
    }
    reduce(buffers, begin, count);
    EXPECT_TRUE(at::equal(out, expected.to(dtype))) << ranks << " ranks";
    EXPECT_TRUE(at::equal(inputs[0].narrow(0, begin, count), out.narrow(0, begin, count)));
    EXPECT_TRUE(at::equal(inputs[0].narrow(0, 0, begin), input(dtype, 0, n).narrow(0, 0, begin)));
  }
}

INSTANTIATE_TEST_SUITE_P(All,
                         LocalReduce,
                         ::testing::Values(Case{at::kFloat, RedOp::SUM},
                                           Case{at::kDouble, RedOp::AVG},
                                           Case{at::kBFloat16, RedOp::SUM},
                                           Case{at::kBFloat16, RedOp::AVG},
                                           Case{at::kHalf, RedOp::MAX},
                                           Case{at::kLong, RedOp::SUM},
                                           Case{at::kInt, RedOp::MIN},
                                           Case{at::kByte, RedOp::SUM},
                                           Case{at::kBool, RedOp::MAX},
                                           Case{at::kFloat, RedOp::MIN}));

TEST(LocalReduceOfBf16, RoundsOnce) {
  // 256 + 1 is 256 in bf16, so a sum that is rounded at each step never leaves 256.
  std::vector<at::Tensor> inputs{at::full({1}, 256, at::kBFloat16)};
  for (int i = 0; i < 8; ++i) inputs.push_back(at::ones({1}, at::kBFloat16));
  at::Tensor out = at::zeros({1}, at::kBFloat16);
  ReduceBuffers buffers{{}, {out.data_ptr()}, at::kBFloat16, RedOp::SUM};
  for (const at::Tensor& t : inputs) buffers.sources.push_back(t.const_data_ptr());
  reduce(buffers, 0, 1);
  EXPECT_EQ(out[0].item<float>(), 264);
}

TEST(LocalReduceOfFloats, KeepsNaN) {
  const float nan = std::numeric_limits<float>::quiet_NaN();
  for (const RedOp op : {RedOp::MAX, RedOp::MIN}) {
    float a[] = {nan, 1}, b[] = {1, nan}, out[] = {0, 0};
    reduce({{a, b}, {out}, at::kFloat, op}, 0, 2);
    EXPECT_TRUE(std::isnan(out[0]) && std::isnan(out[1]));
  }
}

TEST(CheckReducible, RefusesAveragesOfIntegersAndOtherTypes) {
  EXPECT_NO_THROW(check_reducible(at::kLong, RedOp::SUM));
  EXPECT_THROW(check_reducible(at::kLong, RedOp::AVG), Error);
  EXPECT_THROW(check_reducible(at::kBool, RedOp::SUM), Error);
  EXPECT_THROW(check_reducible(at::kFloat, RedOp::PRODUCT), Error);
}

}  // namespace
}  // namespace yoke
