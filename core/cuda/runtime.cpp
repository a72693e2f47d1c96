// libyoke_cuda.so: the only part of Yoke that links libtorch_cuda.
#include <ATen/cuda/CUDAGraph.h>
#include <c10/cuda/CUDACachingAllocator.h>
#include <c10/cuda/CUDAStream.h>

#include <cstdlib>
#include <torch/csrc/distributed/c10d/ProcessGroupNCCL.hpp>
#include <utility>

#include "core/cuda/device_runtime.hpp"
#include "core/cuda/rotary.hpp"

namespace yoke {
namespace {

class CudaGraph final : public DeviceGraph {
 public:
  ~CudaGraph() override {
    if (!recording_) return;
    try {
      graph_.capture_end();
    } catch (...) {  // a recording that was given up is not valid, and need not be
    }
  }
  // Other threads (NCCL's watchdog, the one that reads ahead) go on meanwhile.
  void begin() override {
    // What usual steps left in the allocator's cache cannot be used by a recording, which has
    // memory of its own, and cannot be freed during it.
    c10::cuda::CUDACachingAllocator::emptyCache();
    graph_.capture_begin({0, 0}, cudaStreamCaptureModeThreadLocal);
    recording_ = true;
  }
  void end() override {
    recording_ = false;
    graph_.capture_end();
  }
  void replay() override { graph_.replay(); }

 private:
  at::cuda::CUDAGraph graph_;
  bool recording_ = false;
};

// Errors are ours to report: the process group tells them and does not end the process. What the
// user has set stays.
void set_nccl_defaults() {
  ::setenv("TORCH_NCCL_ASYNC_ERROR_HANDLING", "2", 0);  // abort the communicators, nothing else
  ::setenv("TORCH_NCCL_ENABLE_MONITORING", "0", 0);     // its monitor aborts processes
  // Before it aborts, the watchdog sleeps four times this, for other ranks to write dumps.
  ::setenv("TORCH_NCCL_WAIT_TIMEOUT_DUMP_MILSEC", "0", 0);
  ::setenv("TORCH_NCCL_DUMP_ON_TIMEOUT", "0", 0);
}

class CudaRuntime final : public DeviceRuntime {
 public:
  CudaRuntime() { set_nccl_defaults(); }

  c10::intrusive_ptr<c10d::Backend> connect_nccl(const DeviceGroup& group,
                                                 c10::Device device) override {
    auto options = c10d::ProcessGroupNCCL::Options::create(/*is_high_priority_stream=*/true);
    options->timeout = group.timeout;
    options->group_name = group.name;
    options->global_ranks_in_group.assign(group.ranks.begin(), group.ranks.end());
    auto backend = c10::make_intrusive<c10d::ProcessGroupNCCL>(
        group.store, group.rank, static_cast<int>(group.ranks.size()), std::move(options));
    backend->setBoundDeviceId(device);
    backend->eagerConnectSingleDevice(device);
    return backend;
  }

  void abort(const std::vector<c10d::Backend*>& groups) override {
    if (groups.empty()) return;
    auto& first = static_cast<c10d::ProcessGroupNCCL&>(*groups.front());
    first.groupStart();
    for (c10d::Backend* group : groups) group->abort();
    first.groupEnd();
  }

  std::unique_ptr<DeviceGraph> make_graph() override { return std::make_unique<CudaGraph>(); }

  void rotary(const at::Tensor& out,
              const at::Tensor& x,
              const at::Tensor& cos,
              const at::Tensor& sin,
              float sign) override {
    x.scalar_type() == at::kBFloat16 ? rotate<uint16_t>(out, x, cos, sin, sign)
                                     : rotate<float>(out, x, cos, sin, sign);
  }

 private:
  template <class T>
  static void rotate(const at::Tensor& out,
                     const at::Tensor& x,
                     const at::Tensor& cos,
                     const at::Tensor& sin,
                     float sign) {
    const Rotation<T> rotation{static_cast<const T*>(x.const_data_ptr()),
                               cos.const_data_ptr<float>(),
                               sin.const_data_ptr<float>(),
                               static_cast<T*>(out.data_ptr()),
                               x.size(0) * x.size(1),
                               x.size(2),
                               x.size(3) / 2,
                               sign};
    rotate_on_device(rotation, c10::cuda::getCurrentCUDAStream(x.device().index()).stream());
  }
};

}  // namespace
}  // namespace yoke

extern "C" __attribute__((visibility("default"))) yoke::DeviceRuntime* yoke_cuda_runtime() {
  static yoke::CudaRuntime runtime;
  return &runtime;
}
