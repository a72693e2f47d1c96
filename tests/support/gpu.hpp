// Is there a GPU to test on?
#pragma once

#include "core/launch/nvidia_driver.hpp"

// First line of a test that needs one.
#define YOKE_REQUIRE_GPU() \
  if (yoke::nvidia_driver().devices == 0) GTEST_SKIP() << yoke::nvidia_driver().problem
