// What libyoke_cuda.so sets for the whole process. The library can be loaded without a driver.
#include <ATen/Context.h>
#include <gtest/gtest.h>

#include <cstdlib>
#include <string>

#include "core/cuda/device_runtime.hpp"

namespace yoke {
namespace {

class CudaRuntime : public ::testing::Test {
 protected:
  void SetUp() override {
    if (!has_cuda_library()) GTEST_SKIP() << "libyoke_cuda.so was not built";
  }
  static at::Context& torch() { return at::globalContext(); }
  static std::string workspaces() {
    const char* const value = std::getenv("CUBLAS_WORKSPACE_CONFIG");
    return value == nullptr ? "" : value;
  }
};

// The first of these tests, because the settings last as long as the process.
TEST_F(CudaRuntime, AddsPartsOfProductsInFp32AndIsNotDeterministicByDefault) {
  ::unsetenv("CUBLAS_WORKSPACE_CONFIG");
  cuda_runtime();
  using Option = at::CuBLASReductionOption;
  EXPECT_NE(torch().allowBF16ReductionCuBLAS(), Option::AllowReducedPrecisionWithSplitK);
  EXPECT_NE(torch().allowFP16ReductionCuBLAS(), Option::AllowReducedPrecisionWithSplitK);
  EXPECT_FALSE(torch().deterministicAlgorithms());
  EXPECT_FALSE(torch().deterministicCuDNN());
  EXPECT_EQ(workspaces(), "");
}

TEST_F(CudaRuntime, UsesDeterministicKernelsOnRequest) {
  ::unsetenv("CUBLAS_WORKSPACE_CONFIG");
  cuda_runtime().use_deterministic_kernels();
  EXPECT_TRUE(torch().deterministicAlgorithms());
  EXPECT_FALSE(torch().deterministicAlgorithmsWarnOnly());
  EXPECT_TRUE(torch().deterministicCuDNN());
  EXPECT_FALSE(torch().benchmarkCuDNN());  // a measurement may choose another kernel in each run
  EXPECT_FALSE(torch().deterministicFillUninitializedMemory());
  EXPECT_EQ(workspaces(), ":4096:8");
}

TEST_F(CudaRuntime, KeepsTheWorkspacesThatTheUserHasChosen) {
  ::setenv("CUBLAS_WORKSPACE_CONFIG", ":16:8", 1);
  cuda_runtime().use_deterministic_kernels();
  EXPECT_EQ(workspaces(), ":16:8");
}

}  // namespace
}  // namespace yoke
