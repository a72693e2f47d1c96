// CUDA reports a failure through whatever call comes next, with a text that names its kind but not
// its cause: a fault of the hardware, a fault of a kernel, or another program. What this file adds
// depends on that kind alone. The failures are recognised by these texts, because only a text
// passes through the contract. The texts have been the same for many versions, and
// device_failure_test compares them with those of the installed run time.
#include "core/launch/device_failure.hpp"

#include <array>

namespace yoke {
namespace {

struct Known {
  const char* text;  // text of cudaGetErrorString()
  const char* meaning;
  bool in_a_run;  // whether the device has worked before
};

constexpr const char* kMemoryFault =
    "the memory of this GPU has a fault; reset the GPU (nvidia-smi --gpu-reset) or leave it out "
    "with CUDA_VISIBLE_DEVICES before the run continues. `nvidia-smi -q -d ECC` counts the faults";
constexpr const char* kLinkFault =
    "the NVLink connections of this GPU have a fault; leave the GPU out with CUDA_VISIBLE_DEVICES "
    "before the run continues. `nvidia-smi nvlink --errorcounters` counts the faults";
constexpr const char* kKernelFault =
    "a kernel of this run or the GPU itself has failed. `dmesg | grep Xid` on this machine, as "
    "root, tells which: Xid 13, 31 and 43 are faults of programs, most others are faults of the "
    "hardware";
constexpr const char* kInUse =
    "another process uses the GPU and excludes others; `nvidia-smi` lists the processes, and "
    "`nvidia-smi -q -d COMPUTE` shows the compute mode";
constexpr const char* kUnknownGpu =
    "LibTorch or Yoke was not built for GPUs of this kind; use device=cpu, or build Yoke with the "
    "compute capability of the GPU in YOKE_CUDA_ARCHITECTURES";

constexpr std::array kKnown{
    Known{"uncorrectable ECC error encountered", kMemoryFault, true},
    Known{"uncorrectable NVLink error detected during the execution", kLinkFault, true},
    Known{"Invalid access of peer GPU memory over nvlink or a hardware error", kLinkFault, true},
    Known{"an illegal memory access was encountered", kKernelFault, true},
    Known{"the launch timed out and was terminated", kKernelFault, true},
    Known{"device-side assert triggered", kKernelFault, true},
    Known{"hardware stack error", kKernelFault, true},
    Known{"an illegal instruction was encountered", kKernelFault, true},
    Known{"misaligned address", kKernelFault, true},
    Known{"operation not supported on global/shared address space", kKernelFault, true},
    Known{"invalid program counter", kKernelFault, true},
    Known{"unspecified launch failure", kKernelFault, true},
    Known{"CUDA-capable device(s) is/are busy or unavailable", kInUse, false},
    Known{"exclusive-thread device already in use by a different thread", kInUse, false},
    Known{"no kernel image is available for execution on the device", kUnknownGpu, false},
};

// Texts about memory of a device, and of the machine. The first ones contain one of the last.
constexpr std::array kOnDevice{"CUDA out of memory",
                               "CUDA error: out of memory",
                               "CUBLAS_STATUS_ALLOC_FAILED",
                               "CUDNN_STATUS_ALLOC_FAILED"};
constexpr std::array kOnMachine{
    "can't allocate memory", "Cannot allocate memory", "std::bad_alloc", "out of memory"};

// Returns the message up to the end of the line that contains position `at`.
std::string until_line_end(const std::string& message, size_t at) {
  return message.substr(0, message.find('\n', at));
}

}  // namespace

std::optional<MemoryFailure> memory_failure(const std::string& message) {
  for (const char* text : kOnDevice) {
    if (const size_t at = message.find(text); at != std::string::npos)
      return MemoryFailure{true, until_line_end(message, at)};
  }
  for (const char* text : kOnMachine) {
    if (const size_t at = message.find(text); at != std::string::npos)
      return MemoryFailure{false, until_line_end(message, at)};
  }
  return std::nullopt;
}

// LibTorch appends lines that say how to debug kernels.
std::string explain_device_failure(const std::string& message,
                                   const std::string& device,
                                   const std::string& how_to_continue) {
  for (const Known& known : kKnown) {
    const size_t at = message.find(known.text);
    if (at == std::string::npos) continue;
    return until_line_end(message, at) + " (" + device + "): " + known.meaning +
           (known.in_a_run ? how_to_continue : "");
  }
  return message;
}

}  // namespace yoke
