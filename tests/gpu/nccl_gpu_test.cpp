// Tests NCCL through libyoke_cuda.so, with one rank, so that one GPU is enough. scripts/gpu_test
// also runs two ranks.
#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include <chrono>
#include <memory>
#include <torch/csrc/distributed/c10d/HashStore.hpp>
#include <vector>

#include "core/cuda/rank_device.hpp"
#include "tests/support/gpu.hpp"

namespace yoke::testing {
namespace {

class Nccl : public ::testing::Test {
 protected:
  void SetUp() override {
    YOKE_REQUIRE_GPU();
    rank_ = std::make_unique<RankDevice>(0);
    group_ = rank_->runtime().connect_nccl({.name = "alone",
                                            .store = c10::make_intrusive<c10d::HashStore>(),
                                            .ranks = {0},
                                            .rank = 0,
                                            .timeout = std::chrono::minutes(5)},
                                           rank_->device());
  }
  void TearDown() override {
    if (group_) group_->shutdown();
  }
  // Returns 0, 1, 2 and so on, on the device.
  at::Tensor ramp(int64_t n, at::ScalarType dtype = at::kFloat) const {
    return at::arange(n, at::TensorOptions(dtype).device(rank_->device()));
  }

  std::unique_ptr<RankDevice> rank_;
  c10::intrusive_ptr<c10d::Backend> group_;
};

TEST_F(Nccl, ReducesOverOneRankToTheSame) {
  for (const at::ScalarType dtype : {at::kFloat, at::kBFloat16, at::kDouble, at::kLong}) {
    std::vector<at::Tensor> sums{ramp(200, dtype)};
    group_->allreduce(sums)->wait();
    EXPECT_TRUE(at::equal(sums[0], ramp(200, dtype))) << dtype;
  }
}

TEST_F(Nccl, GathersAndScattersWhatItHas) {
  at::Tensor gathered = at::zeros_like(ramp(1000)), scattered = at::zeros_like(gathered),
             given = ramp(1000);
  group_->_allgather_base(gathered, given)->wait();
  group_->_reduce_scatter_base(scattered, given)->wait();
  EXPECT_TRUE(at::equal(gathered, given));
  EXPECT_TRUE(at::equal(scattered, given));
}

// wait() makes the stream of the rank wait, not the host. Work that is issued afterwards runs after
// the collective.
TEST_F(Nccl, WhatIsIssuedAfterAWaitComesAfterTheCollective) {
  constexpr int64_t kCount = 1 << 23;  // fp32 holds all integers up to twice this
  at::Tensor sum = ramp(kCount);
  for (int i = 0; i < 20; ++i) {
    std::vector<at::Tensor> sums{sum};
    group_->allreduce(sums)->wait();
    sum.add_(1);
  }
  EXPECT_TRUE(at::equal(sum, ramp(kCount) + 20));
}

}  // namespace
}  // namespace yoke::testing
