// Asks the NVIDIA driver of this machine for its devices, through libcuda.so.1. Neither
// LibTorch nor the CUDA toolkit is needed or loaded.
#pragma once

#include <cstdint>
#include <string>

namespace yoke {

struct NvidiaDriver {
  int32_t devices = 0;  // devices visible to this process, after CUDA_VISIBLE_DEVICES
  std::string name;     // name of the first device
  std::string problem;  // if devices = 0, why: "no NVIDIA driver is installed (...)"; else ""
};

// Returns what the driver reports. It is queried once per process. Thread-safe.
const NvidiaDriver& nvidia_driver();

}  // namespace yoke
