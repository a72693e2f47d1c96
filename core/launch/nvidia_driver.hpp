// Asks the NVIDIA driver of this machine for its devices, through libcuda.so.1. Neither
// LibTorch nor the CUDA toolkit is needed or loaded.
#pragma once

#include <cstdint>
#include <string>

namespace yoke {

struct NvidiaDriver {
  int32_t devices = 0;  // devices that this process can use, after CUDA_VISIBLE_DEVICES
  std::string name;     // name of the first device
  std::string problem;  // if devices = 0, why: "no NVIDIA driver is installed (...)"; else ""
  std::string fix;      // what helps against the problem
  // Whether the problem lies in a driver that is installed, so that it may hide devices.
  bool is_faulty = false;
};

// Returns what the driver reports. It is queried once per process. Thread-safe.
const NvidiaDriver& nvidia_driver();

// Returns the name of a device for the user: "cuda:0, NVIDIA H200".
std::string device_name(int32_t index);

}  // namespace yoke
