// The CUDA device of one rank: chosen, made current, with a stream of its own.
#pragma once

#include <ATen/core/Tensor.h>
#include <c10/core/Device.h>
#include <c10/core/Stream.h>

#include "core/cuda/device_runtime.hpp"
#include "yoke/parallel_backend.h"

namespace yoke {

// Bytes of device memory that LibTorch's allocator holds for tensors. What CUDA, NCCL and others
// take for themselves is not in it.
struct DeviceMemory {
  int64_t peak_bytes = 0;   // of tensors, since the start
  int64_t total_bytes = 0;  // of the device
};

class RankDevice {
 public:
  // index: among the devices that this process sees. Makes the device and a stream of its own the
  // current ones of this thread, which must be the one that runs the rank. Throws Error.
  explicit RankDevice(int32_t index);
  RankDevice(const RankDevice&) = delete;
  RankDevice& operator=(const RankDevice&) = delete;

  c10::Device device() const { return stream_.device(); }
  YokeDevice contract_device() const { return {YOKE_DEVICE_CUDA, device().index()}; }
  void* stream() const { return stream_.native_handle(); }  // a cudaStream_t
  const c10::Stream& copies() const { return copies_; }     // for work beside it, on other threads
  DeviceRuntime& runtime() const { return runtime_; }
  DeviceMemory memory() const;

 private:
  DeviceRuntime& runtime_;
  c10::Stream stream_, copies_;
};

}  // namespace yoke
