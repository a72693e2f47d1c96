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
  bool in_a_run;  // whether it can happen in the middle of a run
};

constexpr const char* kMemoryFault =
    "the memory of this GPU has a fault (`nvidia-smi -q -d ECC` counts them). Reset the GPU as "
    "root "
    "(nvidia-smi --gpu-reset -i N, with N as nvidia-smi counts), or leave it out with "
    "CUDA_VISIBLE_DEVICES and start fewer ranks";
constexpr const char* kLinkFault =
    "the NVLink connections of this GPU have a fault (`nvidia-smi nvlink --errorcounters` counts "
    "them). Leave the GPU out with CUDA_VISIBLE_DEVICES and start fewer ranks";
constexpr const char* kPeerFault =
    "a kernel has accessed the memory of another GPU wrongly, or the hardware has a fault. `dmesg "
    "| "
    "grep Xid`, as root, may tell which";
constexpr const char* kKernelFault =
    "a kernel of this run or the GPU has failed. If it happens again on another GPU, a kernel is "
    "at "
    "fault; a run with CUDA_LAUNCH_BLOCKING=1 fails where it is launched. `dmesg | grep Xid`, as "
    "root, often tells: 13, 31 and 43 usually point to a program, most others to the hardware";
constexpr const char* kCheckFailed =
    "a check in a kernel has failed, e.g. an index outside of a tensor; a run with "
    "CUDA_LAUNCH_BLOCKING=1 fails where the kernel is launched";
constexpr const char* kNoCause =
    "the driver names no cause. `dmesg | grep Xid`, as root, often does: 79 means that the GPU no "
    "longer answers. Then restart the machine, or leave the GPU out with CUDA_VISIBLE_DEVICES and "
    "start fewer ranks";
constexpr const char* kTooLong =
    "a kernel took longer than a GPU that also draws a display allows; use a GPU without a display";
constexpr const char* kInUse =
    "another process uses the GPU and excludes others; `nvidia-smi` lists the processes, and "
    "`nvidia-smi -q -d COMPUTE` shows the compute mode";
constexpr const char* kUnknownGpu =
    "LibTorch or Yoke was not built for GPUs of this kind; use device=cpu, or build Yoke with the "
    "compute capability of the GPU in YOKE_CUDA_ARCHITECTURES";

constexpr std::array kKnown{
    Known{"uncorrectable ECC error encountered", kMemoryFault, true},
    Known{"uncorrectable NVLink error detected during the execution", kLinkFault, true},
    Known{"Invalid access of peer GPU memory over nvlink or a hardware error", kPeerFault, true},
    Known{"an illegal memory access was encountered", kKernelFault, true},
    Known{"the launch timed out and was terminated", kTooLong, true},
    Known{"device-side assert triggered", kCheckFailed, true},
    Known{"hardware stack error", kKernelFault, true},
    Known{"an illegal instruction was encountered", kKernelFault, true},
    Known{"misaligned address", kKernelFault, true},
    Known{"operation not supported on global/shared address space", kKernelFault, true},
    Known{"invalid program counter", kKernelFault, true},
    Known{"unspecified launch failure", kKernelFault, true},
    // Other libraries also report an "unknown error", so here the text includes that of LibTorch.
    Known{"CUDA error: unknown error", kNoCause, true},
    Known{"CUDA-capable device(s) is/are busy or unavailable", kInUse, false},
    Known{"exclusive-thread device already in use by a different thread", kInUse, false},
    Known{"no kernel image is available for execution on the device", kUnknownGpu, false},
};

// What messages say if an allocation fails, and what those about memory of a device also contain.
constexpr std::array kNoMemory{"out of memory",
                               "can't allocate memory",
                               "Cannot allocate memory",
                               "std::bad_alloc",
                               "CUBLAS_STATUS_ALLOC_FAILED",
                               "CUDNN_STATUS_ALLOC_FAILED"};
constexpr std::array kOfDevice{"CUDA", "Cuda", "CUBLAS", "CUDNN"};

// Returns the message up to the end of the line that contains position `at`.
std::string until_line_end(const std::string& message, size_t at) {
  return message.substr(0, message.find('\n', at));
}

}  // namespace

std::optional<MemoryFailure> memory_failure(const std::string& message) {
  for (const char* text : kNoMemory) {
    const size_t at = message.find(text);
    if (at == std::string::npos) continue;
    MemoryFailure failure{false, until_line_end(message, at)};
    for (const char* name : kOfDevice)
      failure.on_device = failure.on_device || failure.text.find(name) != std::string::npos;
    return failure;
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
    return until_line_end(message, at) + (device.empty() ? "" : " (" + device + ")") + ": " +
           known.meaning + (known.in_a_run ? how_to_continue : "");
  }
  return message;
}

}  // namespace yoke
