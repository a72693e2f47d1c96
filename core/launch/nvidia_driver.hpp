// Asks the NVIDIA driver of this machine for its devices, through libcuda.so.1. Neither
// LibTorch nor the CUDA toolkit is needed or loaded.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace yoke {

struct NvidiaDriver {
  int32_t devices = 0;             // devices that this process can use, after CUDA_VISIBLE_DEVICES
  std::vector<std::string> names;  // names of the devices
  std::string problem;  // if devices = 0, why: "no NVIDIA driver is installed (...)"; else ""
  std::string fix;      // what the user can do about the problem
  // Whether the problem lies in a driver that is installed, so that it may hide devices.
  bool is_faulty = false;
};

// Returns what the driver reports. It is queried once per process. Thread-safe.
const NvidiaDriver& nvidia_driver();

// Returns what a user needs to find a device: "cuda:0, NVIDIA H200", and CUDA_VISIBLE_DEVICES if it
// is set, because CUDA numbers only the devices that it lists.
std::string device_name(int32_t index);

}  // namespace yoke
