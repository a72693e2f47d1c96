// The CUDA device that device_kernels_test.cpp runs on: an emulated one among the unit tests, a
// card in tests/gpu. Its kernels are those of cuda_platform().
#pragma once

#include <memory>

#include "yoke/parallel_backend.h"

namespace yoke::deepspeed_stub::testing {

class TestedHost {
 public:
  static const char* missing();  // why no device can be used here; NULL = one can
  TestedHost();
  ~TestedHost();
  const YokeHost& host() const;

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace yoke::deepspeed_stub::testing
