#include "core/launch/device_choice.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "yoke/error.hpp"
#include "yoke/parallel_backend.h"

namespace yoke {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

constexpr uint32_t kCpu = 1u << YOKE_DEVICE_CPU, kCuda = 1u << YOKE_DEVICE_CUDA;

// Returns the facts of a machine with two devices and everything that a run on them needs.
DeviceFacts facts(const std::string& asked) {
  DeviceFacts f;
  f.asked = asked;
  f.built = true;
  f.driver.devices = 2;
  f.backend = "some";
  f.declared = kCpu | kCuda;
  f.local_ranks = 2;
  return f;
}

// Returns the message for device = cuda. With device = auto, the same obstacle must lead to the
// CPU.
std::string refusal(DeviceFacts f) {
  EXPECT_TRUE(f.asked == "cuda");
  f.asked = "auto";
  EXPECT_FALSE(runs_on_cuda(f));
  f.asked = "cuda";
  try {
    runs_on_cuda(f);
  } catch (const Error& e) {
    EXPECT_EQ(e.code(), YOKE_INVALID_ARGUMENT);
    return e.what();
  }
  return "nothing was thrown";
}

TEST(RunsOnCuda, IfAskedForAndAllIsThere) {
  EXPECT_TRUE(runs_on_cuda(facts("cuda")));
  EXPECT_TRUE(runs_on_cuda(facts("auto")));
  EXPECT_FALSE(runs_on_cuda(facts("cpu")));
}

TEST(RunsOnCuda, SaysWhatIsMissing) {
  DeviceFacts f = facts("cuda");
  f.driver = {.problem = "no NVIDIA driver is installed", .fix = "use device=cpu"};
  EXPECT_EQ(refusal(f), "device = cuda, but no NVIDIA driver is installed; use device=cpu");
  f = facts("cuda");
  f.built = false;
  EXPECT_THAT(refusal(f), HasSubstr("built without CUDA"));
  f = facts("cuda");
  f.declared = kCpu;
  EXPECT_THAT(refusal(f), HasSubstr("backend 'some' does not declare"));
  f = facts("cuda");
  f.threads = true;
  EXPECT_THAT(refusal(f), HasSubstr("--virtual"));
  f = facts("cuda");
  f.local_ranks = 3;
  EXPECT_THAT(refusal(f),
              HasSubstr("3 ranks are to start on this machine, which has 2 CUDA devices"));
}

TEST(RunsOnCuda, RefusesTheCpuForABackendThatKnowsDevicesOnly) {
  DeviceFacts f = facts("cpu");
  f.declared = kCuda;
  EXPECT_THROW(runs_on_cuda(f), Error);
  f.asked = "auto";
  EXPECT_TRUE(runs_on_cuda(f));
  f.driver = {.problem = "none"};
  EXPECT_THROW(runs_on_cuda(f), Error);
}

TEST(UnusedDevices, AreNotedWithTheReason) {
  DeviceFacts f = facts("auto");
  f.local_ranks = 3;
  EXPECT_EQ(note_on_unused_devices(f),
            "this run computes on the CPU: 3 ranks are to start on this machine, which has 2 CUDA "
            "devices, and NCCL needs one for each; start fewer, or use device=cpu");
  f.asked = "cpu";
  EXPECT_EQ(note_on_unused_devices(f), "");
}

TEST(UnusedDevices, AreNotedIfADriverIsFaultyAndNothingElseStandsInTheWay) {
  DeviceFacts f = facts("auto");
  EXPECT_EQ(note_on_unused_devices(f), "");
  f.driver = {.problem = "no NVIDIA driver is installed", .fix = "use device=cpu"};
  EXPECT_EQ(note_on_unused_devices(f), "");
  f.driver = {.problem = "the driver is too old", .fix = "install another", .is_faulty = true};
  EXPECT_EQ(note_on_unused_devices(f),
            "this run computes on the CPU: the driver is too old; install another");
  EXPECT_FALSE(runs_on_cuda(f));
  for (const auto hide : {+[](DeviceFacts& other) { other.asked = "cpu"; },
                          +[](DeviceFacts& other) { other.built = false; },
                          +[](DeviceFacts& other) { other.declared = kCpu; },
                          +[](DeviceFacts& other) { other.threads = true; }}) {
    DeviceFacts other = f;
    hide(other);
    EXPECT_EQ(note_on_unused_devices(other), "");
  }
}

std::string refusal(int32_t local_rank, int32_t visible, const char* variable) {
  try {
    device_of_rank(local_rank, visible, variable);
  } catch (const Error& e) {
    return e.what();
  }
  return "nothing was thrown";
}

TEST(DeviceChoice, TakesTheDeviceOfTheLocalRank) {
  EXPECT_EQ(device_of_rank(0, 4, nullptr), 0);
  EXPECT_EQ(device_of_rank(3, 4, nullptr), 3);
  EXPECT_EQ(device_of_rank(1, 2, "5,7"), 1);  // index among the visible devices
}

TEST(DeviceChoice, TakesTheOnlyDeviceThatTheLauncherLeft) {
  EXPECT_EQ(device_of_rank(3, 1, "3"), 0);
}

TEST(DeviceChoice, RefusesARankWithoutADevice) {
  EXPECT_THAT(refusal(2, 2, "0,1"),
              AllOf(HasSubstr("local rank 2"),
                    HasSubstr("2 CUDA"),
                    HasSubstr("CUDA_VISIBLE_DEVICES = '0,1'")));
  EXPECT_THAT(refusal(0, 0, nullptr), HasSubstr("CUDA_VISIBLE_DEVICES is not set"));
}

TEST(Fp8Units, AreMissingOnlyIfProductsNeedThem) {
  EXPECT_EQ(missing_fp8_units("fp8", YOKE_BF16, false, "NVIDIA A100"),
            "precision.product = \"fp8\": this GPU, NVIDIA A100, has no units for fp8, which "
            "NVIDIA's GPUs have since compute capability 8.9; set precision.product = \"param\" to "
            "multiply in bf16");
  EXPECT_EQ(missing_fp8_units("fp8", YOKE_BF16, true, "NVIDIA H100"), "");
  EXPECT_EQ(missing_fp8_units("fp8", YOKE_F32, false, "NVIDIA A100"), "");
  EXPECT_EQ(missing_fp8_units("param", YOKE_BF16, false, "NVIDIA A100"), "");
}

}  // namespace
}  // namespace yoke
