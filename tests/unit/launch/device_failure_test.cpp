#include "core/launch/device_failure.hpp"

#include <dlfcn.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace yoke {
namespace {

using ::testing::EndsWith;
using ::testing::HasSubstr;
using ::testing::Not;
using ::testing::StartsWith;

std::string explained(const std::string& message) {
  return explain_device_failure(message, "cuda:3, NVIDIA H200");
}

TEST(ExplainDeviceFailure, SaysWhatItMeansInsteadOfHowToDebugKernels) {
  const std::string text = explained(
      "step 7: CUDA error: uncorrectable ECC error encountered\n"
      "Search for `cudaErrorECCUncorrectable' in the documentation for more information.\n"
      "CUDA kernel errors might be asynchronously reported at some other API call.\n"
      "For debugging consider passing CUDA_LAUNCH_BLOCKING=1\n");
  EXPECT_THAT(text,
              StartsWith("step 7: CUDA error: uncorrectable ECC error encountered (cuda:3, NVIDIA "
                         "H200): the memory of this GPU has a fault "));
  EXPECT_THAT(text, HasSubstr("nvidia-smi -q -d ECC"));
  EXPECT_THAT(text, Not(HasSubstr("\n")));
}

TEST(ExplainDeviceFailure, LeavesOtherMessagesAlone) {
  for (const char* text : {"",
                           "the loss is NaN",
                           "CUDA error: invalid argument\nSearch for it",
                           "data.bin: unknown error"})
    EXPECT_EQ(explained(text), text);
}

TEST(ExplainDeviceFailure, LeavesOutADeviceThatIsNotKnown) {
  EXPECT_THAT(
      explain_device_failure("CUDA error: uncorrectable ECC error encountered\nmore", ""),
      StartsWith("CUDA error: uncorrectable ECC error encountered: the memory of this GPU"));
}

TEST(ExplainDeviceFailure, SaysHowAGpuThatIsLostCanBeTold) {
  EXPECT_THAT(
      explained("step 3: CUDA error: unknown error\nSearch for `cudaErrorUnknown'"),
      StartsWith("step 3: CUDA error: unknown error (cuda:3, NVIDIA H200): the driver names "
                 "no cause. `dmesg | grep Xid`"));
}

TEST(ExplainDeviceFailure, SaysHowToContinueIfTheDeviceHasWorkedBefore) {
  const auto continued = [](const std::string& message) {
    return explain_device_failure(message, "cuda:0, GPU", "; to continue, do this");
  };
  EXPECT_THAT(continued("CUDA error: uncorrectable ECC error encountered"),
              EndsWith("start fewer ranks; to continue, do this"));
  EXPECT_THAT(continued("CUDA error: no kernel image is available for execution on the device"),
              Not(HasSubstr("to continue")));
  EXPECT_EQ(continued("the loss is NaN"), "the loss is NaN");
}

TEST(ExplainDeviceFailure, TellsFaultsOfProgramsFromThoseOfOtherProcesses) {
  EXPECT_THAT(explained("CUDA error: an illegal memory access was encountered"),
              HasSubstr("13, 31 and 43 usually point to a program"));
  EXPECT_THAT(explained("CUDA error: CUDA-capable device(s) is/are busy or unavailable"),
              HasSubstr("another process uses the GPU"));
}

#ifdef YOKE_CUDART
// The run time knows the texts of its errors without a driver.
TEST(ExplainDeviceFailure, KnowsTheTextsOfTheInstalledRunTime) {
  void* const library = ::dlopen(YOKE_CUDART, RTLD_NOW | RTLD_LOCAL);
  ASSERT_NE(library, nullptr) << ::dlerror();
  const auto text_of =
      reinterpret_cast<const char* (*)(int)>(::dlsym(library, "cudaGetErrorString"));
  ASSERT_NE(text_of, nullptr);
  for (const int code :
       {46, 209, 214, 216, 220, 226, 700, 702, 710, 714, 715, 716, 717, 718, 719}) {
    const std::string text = text_of(code);
    EXPECT_NE(explained(text), text) << code;
  }
  const std::string unknown = "CUDA error: " + std::string(text_of(999));
  EXPECT_NE(explained(unknown), unknown);
  EXPECT_TRUE(memory_failure("CUDA error: " + std::string(text_of(2))).value().on_device);
}
#endif

TEST(MemoryFailure, TellsMemoryOfADeviceFromThatOfTheMachine) {
  for (const char* text : {"CUDA out of memory. Tried to allocate 2.00 GiB. GPU 0 has a total",
                           "CUDA error: CUBLAS_STATUS_ALLOC_FAILED when calling `cublasCreate`",
                           "cublasLtMatmul: CUBLAS_STATUS_ALLOC_FAILED",
                           "CUDA driver error: out of memory",
                           "NCCL error: unhandled. Last error: Cuda failure 2 'out of memory'"})
    EXPECT_TRUE(memory_failure(text).value().on_device) << text;
  for (const char* text : {"DefaultCPUAllocator: can't allocate memory: you tried to allocate",
                           "writing a.bin: Cannot allocate memory",
                           "std::bad_alloc",
                           "out of memory"})
    EXPECT_FALSE(memory_failure(text).value().on_device) << text;
  EXPECT_FALSE(memory_failure("CUDA error: misaligned address").has_value());
}

TEST(MemoryFailure, KeepsTheMessageUpToTheEndOfItsLine) {
  EXPECT_EQ(memory_failure("step 7:\nCUDA out of memory. Tried 2 GiB.\nframe #0: f\n").value().text,
            "step 7:\nCUDA out of memory. Tried 2 GiB.");
}

}  // namespace
}  // namespace yoke
