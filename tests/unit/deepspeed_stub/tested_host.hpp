// The CUDA device that device_kernels_test.cpp runs on: an emulated one in the unit tests, a real
// GPU in deepspeed_stub_gpu_test. Its kernels are those of cuda_platform().
#pragma once

#include <memory>

#include "yoke/parallel_backend.h"

namespace yoke::deepspeed_stub::testing {

class TestedHost {
 public:
  // Returns why no device can be used on this machine, or NULL if one can.
  static const char* missing();
  TestedHost();
  ~TestedHost();
  const YokeHost& host() const;

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace yoke::deepspeed_stub::testing
