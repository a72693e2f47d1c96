// Asks the NVIDIA driver of this machine for its devices, through libcuda.so.1. Neither
// LibTorch nor the CUDA toolkit is needed or loaded.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace yoke {

struct NvidiaDriver {
  int32_t devices = 0;  // devices that this process can use, after CUDA_VISIBLE_DEVICES
  std::vector<std::string> names{};  // names of the devices
  std::string problem{};  // if devices = 0, why: "no NVIDIA driver is installed (...)"; else ""
  std::string fix{};      // what the user can do about the problem
  // Whether a driver is installed but cannot be used, so that this machine may have devices after
  // all.
  bool is_faulty = false;
};

// Returns what the driver reports. It is queried once per process. Thread-safe.
const NvidiaDriver& nvidia_driver();

// Returns the name of a device for messages: "cuda:0, NVIDIA H200", followed by the value of
// CUDA_VISIBLE_DEVICES if that is set, because then the numbers count only the devices that it
// lists. Requires 0 <= index < nvidia_driver().devices.
std::string device_name(int32_t index);

}  // namespace yoke
