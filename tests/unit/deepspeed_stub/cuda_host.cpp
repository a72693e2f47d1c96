// Implements TestedHost on the first GPU of the machine, with a CUDA stream for each TestedHost.
#include <cuda_runtime.h>

#include "tests/unit/deepspeed_stub/tested_host.hpp"

namespace yoke::deepspeed_stub::testing {

struct TestedHost::Impl {
  Impl() {
    cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking);
    host.device = {YOKE_DEVICE_CUDA, 0};
    host.stream = stream;
  }
  ~Impl() { cudaStreamDestroy(stream); }
  cudaStream_t stream = nullptr;
  YokeHost host{};
};

const char* TestedHost::missing() {
  int devices = 0;
  const cudaError_t error = cudaGetDeviceCount(&devices);
  if (error != cudaSuccess) return cudaGetErrorString(error);
  return devices > 0 ? nullptr : "no CUDA device is visible";
}

TestedHost::TestedHost() : impl_(std::make_unique<Impl>()) {}
TestedHost::~TestedHost() = default;

const YokeHost& TestedHost::host() const {
  return impl_->host;
}

}  // namespace yoke::deepspeed_stub::testing
