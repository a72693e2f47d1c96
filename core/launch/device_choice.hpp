// Chooses the device that a run computes on, and the CUDA device of a rank. Pure functions; no
// LibTorch.
#pragma once

#include <cstdint>
#include <string>

#include "core/launch/nvidia_driver.hpp"

namespace yoke {

// Everything that the choice of the device depends on.
struct DeviceFacts {
  std::string asked;        // key `device`: cpu, cuda or auto
  bool built = false;       // true if this Yoke was built with CUDA
  NvidiaDriver driver;      // not read if `asked` is cpu
  std::string backend;      // name of the backend
  uint32_t declared = 0;    // YokeDescription.devices of the backend
  int32_t local_ranks = 1;  // ranks that start on this machine as processes; 0 = unknown
  bool threads = false;     // true if several ranks are threads of one process
};

// Returns true for CUDA devices and false for the CPU. With `auto`, a run uses CUDA if this build,
// the driver, the backend and the number of devices allow it, else the CPU. Throws
// Error(INVALID_ARGUMENT), with one sentence that starts with "device = ", if CUDA was requested
// but cannot be used, or if the run must use the CPU but the backend does not support it.
bool runs_on_cuda(const DeviceFacts& facts);

// Returns a note for the user if a run with device = auto computes on the CPU although this machine
// has GPUs, or only because its driver has a fault; else "".
std::string note_on_unused_devices(const DeviceFacts& facts);

// Returns the index of this rank's device among the `visible` devices of the process: 0 if there is
// exactly one, because the launcher gave each rank its own; else local_rank. CUDA numbers only the
// devices that CUDA_VISIBLE_DEVICES lists. The value of that variable, `cuda_visible_devices`, is
// needed for the message only; NULL = not set. Throws Error(INVALID_ARGUMENT) if no device is left
// for this rank.
int32_t device_of_rank(int32_t local_rank, int32_t visible, const char* cuda_visible_devices);

// Returns why a GPU cannot compute the matrix products of a run; "" = it can. product: value of
// precision.product. dtype: that of the parameters, by the contract. has_fp8: whether the GPU has
// units for fp8. Only products of bf16 models use these; others are emulated.
std::string missing_fp8_units(const std::string& product,
                              int32_t dtype,
                              bool has_fp8,
                              const std::string& gpu);

}  // namespace yoke
