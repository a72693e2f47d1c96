// Skips a test that needs a GPU if the machine has none.
#pragma once

#include "core/launch/nvidia_driver.hpp"

// Write this as the first line of a test that needs a GPU.
#define YOKE_REQUIRE_GPU() \
  if (yoke::nvidia_driver().devices == 0) GTEST_SKIP() << yoke::nvidia_driver().problem
