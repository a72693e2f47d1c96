#include "core/launch/device_choice.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "yoke/error.hpp"

namespace yoke {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

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
  EXPECT_EQ(device_of_rank(1, 2, "5,7"), 1);  // counted among the visible ones
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

}  // namespace
}  // namespace yoke
