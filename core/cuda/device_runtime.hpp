// What needs libtorch_cuda or kernels of our own: NCCL, graphs. Behind an interface, because a
// program that computes on the CPU never loads it. Everything else on a device goes through c10,
// which the CPU half of LibTorch has.
#pragma once

#include <c10/core/Device.h>
#include <c10/util/intrusive_ptr.h>

#include <chrono>
#include <cstdint>
#include <memory>
#include <string>
#include <torch/csrc/distributed/c10d/Backend.hpp>
#include <torch/csrc/distributed/c10d/Store.hpp>
#include <vector>

#include "yoke/torch.hpp"

namespace yoke {

// A group of ranks that exchange tensors in device memory.
struct DeviceGroup {
  std::string name;
  c10::intrusive_ptr<c10d::Store> store;  // of this group alone
  std::vector<int32_t> ranks;             // global, ascending
  int32_t rank = 0;                       // this one, as an index into ranks
  std::chrono::milliseconds timeout{};    // of each collective
};

class DeviceRuntime {
 public:
  virtual ~DeviceRuntime() = default;
  // A process group of NCCL with a high-priority stream of its own, connected. Collective over the
  // group. A collective that fails or times out aborts the group and shows in getError(); it does
  // not end the process. Throws std::exception.
  virtual c10::intrusive_ptr<c10d::Backend> connect_nccl(const DeviceGroup& group,
                                                         c10::Device device) = 0;
  // Of connect_nccl, all at once: freeing one waits for the device, and so for the kernels of
  // others.
  virtual void abort(const std::vector<c10d::Backend*>& groups) = 0;
  virtual std::unique_ptr<DeviceGraph> make_graph() = 0;
  // out = x [B, S, heads, D] turned by sign times the angles [B, S, D / 2], on the current stream.
  // x and out fp32 or bf16, cos and sin fp32; all compact.
  virtual void rotary(const at::Tensor& out,
                      const at::Tensor& x,
                      const at::Tensor& cos,
                      const at::Tensor& sin,
                      float sign) = 0;
};

// Loads libyoke_cuda.so from the folder of this library, and LibTorch's CUDA half with it, at the
// first call. Throws Error(FAILED_PRECONDITION) if that cannot be done. Any thread.
DeviceRuntime& cuda_runtime();

// Was CUDA built, i.e. is the library there? Loads nothing.
bool has_cuda_library();

// What libyoke_cuda.so exports, under the name kCudaEntry.
using CudaEntry = DeviceRuntime* (*)();
inline constexpr const char* kCudaEntry = "yoke_cuda_runtime";

}  // namespace yoke
