// What a training run on an emulated device must share with the same run on the CPU. The device has
// its own operators, and kernels of its own for AdamW.
#pragma once

#include <gtest/gtest.h>

#include <cstddef>
#include <cstdint>
#include <vector>

#include "yoke/parallel_backend.h"

namespace yoke::testing {

// Bounds of the relative differences of losses and gradient norms, and of the difference of the
// parameters in units of what the run has updated. AdamW divides by the size of the gradient, so
// updates by small gradients are as inexact as these.
struct DeviceBounds {
  int32_t dtype;
  double loss, norm, updates;
};
inline constexpr DeviceBounds kDeviceBounds[] = {
    {YOKE_F64, 1e-12, 1e-12, 1e-12}, {YOKE_F32, 2e-6, 1e-4, 1e-4}, {YOKE_BF16, 5e-4, 2e-2, 0.1}};

// Compares the losses or the norms of all steps.
inline void expect_near_cpu(const std::vector<double>& device,
                            const std::vector<double>& cpu,
                            double bound) {
  ASSERT_EQ(device.size(), cpu.size());
  for (size_t i = 0; i < cpu.size(); ++i) {
    EXPECT_NEAR(device[i] / cpu[i], 1, bound) << "step " << i + 1;
  }
}

}  // namespace yoke::testing
