// The CUDA device of one rank, and the rank's own stream on it.
#pragma once

#include <ATen/core/Tensor.h>
#include <c10/core/Device.h>
#include <c10/core/Stream.h>

#include "core/cuda/device_runtime.hpp"
#include "yoke/parallel_backend.h"

namespace yoke {

struct DeviceMemory {
  // The most bytes that LibTorch's allocator has held for tensors so far. Memory that CUDA, NCCL
  // and other libraries allocate for themselves is not included.
  int64_t peak_bytes = 0;
  int64_t total_bytes = 0;  // size of the memory of the device
  // Bytes that LibTorch's allocator in this process does not hold and that are not free: those of
  // other processes, and those of CUDA, NCCL and other libraries in this one.
  int64_t other_bytes = 0;
};

// One per rank. All functions but the constructor may be called from any thread.
class RankDevice {
 public:
  // `index` is the number of the device among those visible to this process. Makes the device, and
  // a new stream on it, current in the calling thread, which must be the thread that runs the rank.
  // Throws Error(FAILED_PRECONDITION) if CUDA cannot be used.
  explicit RankDevice(int32_t index);
  RankDevice(const RankDevice&) = delete;
  RankDevice& operator=(const RankDevice&) = delete;

  c10::Device device() const { return stream_.device(); }
  YokeDevice contract_device() const { return {YOKE_DEVICE_CUDA, device().index()}; }
  void* stream() const { return stream_.native_handle(); }  // a cudaStream_t
  const c10::Stream& copies() const { return copies_; }     // stream for copies by other threads
  DeviceRuntime& runtime() const { return runtime_; }
  DeviceMemory memory() const;

 private:
  DeviceRuntime& runtime_;
  c10::Stream stream_, copies_;
};

}  // namespace yoke
