// Asks the NVIDIA driver of this machine for its devices, through libcuda.so.1. Needs neither
// LibTorch nor the CUDA toolkit, and loads nothing of them.
#pragma once

#include <cstdint>
#include <string>

namespace yoke {

struct NvidiaDriver {
  int32_t devices = 0;  // devices that this process sees, so CUDA_VISIBLE_DEVICES applies
  std::string name;     // name of the first device
  std::string
      problem;  // why there is none: "no NVIDIA driver is installed (...)"; "" = there is one
};

// Returns the answer of the driver, which is asked once per process. Any thread.
const NvidiaDriver& nvidia_driver();

}  // namespace yoke
