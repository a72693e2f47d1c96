// What the NVIDIA driver of this machine says, asked through libcuda.so.1: neither LibTorch nor the
// CUDA toolkit is needed, and nothing of them is loaded.
#pragma once

#include <cstdint>
#include <string>

namespace yoke {

struct NvidiaDriver {
  int32_t devices = 0;  // that this process sees; CUDA_VISIBLE_DEVICES counts
  std::string name;     // of the first one
  std::string problem;  // why there is none: "no NVIDIA driver is installed (...)"
};

// Asked once per process. Any thread.
const NvidiaDriver& nvidia_driver();

}  // namespace yoke
