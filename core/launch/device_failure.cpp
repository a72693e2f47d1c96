// CUDA reports a failure through whatever call comes next, with a text that names its kind but not
// its cause: a fault of the hardware, a fault of a kernel, or another program. What this file adds
// depends on that kind alone. The failures are recognised by these texts, because a code of CUDA
// does not pass through LibTorch's exceptions and the contract; the texts have been the same for
// many versions, and device_failure_test compares them with those of the installed run time.
#include "core/launch/device_failure.hpp"

#include <array>

namespace yoke {
namespace {

struct Known {
  const char* text;  // text of cudaGetErrorString()
  const char* meaning;
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
    "hardware. With CUDA_LAUNCH_BLOCKING=1 the message names the operator";
constexpr const char* kInUse =
    "another process uses the GPU and excludes others; `nvidia-smi` lists the processes, and "
    "`nvidia-smi -q -d COMPUTE` shows the compute mode";
constexpr const char* kUnknownGpu =
    "LibTorch has no kernels for GPUs of this age; use device=cpu, or a GPU of compute capability "
    "8.0 or newer";

constexpr std::array kKnown{
    Known{"uncorrectable ECC error encountered", kMemoryFault},
    Known{"uncorrectable NVLink error detected during the execution", kLinkFault},
    Known{"Invalid access of peer GPU memory over nvlink or a hardware error", kLinkFault},
    Known{"an illegal memory access was encountered", kKernelFault},
    Known{"the launch timed out and was terminated", kKernelFault},
    Known{"device-side assert triggered", kKernelFault},
    Known{"hardware stack error", kKernelFault},
    Known{"an illegal instruction was encountered", kKernelFault},
    Known{"misaligned address", kKernelFault},
    Known{"operation not supported on global/shared address space", kKernelFault},
    Known{"invalid program counter", kKernelFault},
    Known{"unspecified launch failure", kKernelFault},
    Known{"CUDA-capable device(s) is/are busy or unavailable", kInUse},
    Known{"exclusive-thread device already in use by a different thread", kInUse},
    Known{"no kernel image is available for execution on the device", kUnknownGpu},
};

bool contains(const std::string& message, const char* text) {
  return message.find(text) != std::string::npos;
}

}  // namespace

bool lacks_memory(const std::string& message) {
  return contains(message, "out of memory") || contains(message, "can't allocate memory") ||
         contains(message, "CUBLAS_STATUS_ALLOC_FAILED") ||
         contains(message, "CUDNN_STATUS_ALLOC_FAILED");
}

// LibTorch appends lines that say how to debug kernels.
std::string explain_device_failure(const std::string& message, const std::string& device) {
  for (const Known& known : kKnown) {
    const size_t at = message.find(known.text);
    if (at == std::string::npos) continue;
    return message.substr(0, message.find('\n', at)) + " (" + device + "): " + known.meaning;
  }
  return message;
}

}  // namespace yoke
