// Where a run computes, and which CUDA device a rank takes. Pure; no LibTorch.
#pragma once

#include <cstdint>
#include <string>

#include "core/launch/nvidia_driver.hpp"

namespace yoke {

struct DeviceFacts {
  std::string asked;        // the key `device`: cpu, cuda or auto
  bool built = false;       // this Yoke has CUDA
  NvidiaDriver driver;      // unread with asked = cpu
  std::string backend;      // its name
  uint32_t declared = 0;    // YokeDescription.devices
  int32_t local_ranks = 1;  // that this program will start as processes; 0 = not known to it
  bool threads = false;     // several ranks are threads of one process
};

// true: on CUDA devices, false: on the CPU. auto takes the devices if all is there for them. Throws
// Error(INVALID_ARGUMENT), one sentence that begins with "device = ".
bool runs_on_cuda(const DeviceFacts& facts);

// The index among the `visible` devices of this process: 0 if it sees exactly one (the launcher
// gave each rank its own), else local_rank. CUDA numbers only what CUDA_VISIBLE_DEVICES leaves;
// `cuda_visible_devices`, NULL = not set, is for the message. Throws Error(INVALID_ARGUMENT) if
// there is none for this rank.
int32_t device_of_rank(int32_t local_rank, int32_t visible, const char* cuda_visible_devices);

}  // namespace yoke
