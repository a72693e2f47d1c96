// Implements TestedHost on the emulated device, which replaces the GPU in the unit tests.
#include "tests/unit/deepspeed_stub/emulated_cuda.hpp"
#include "tests/unit/deepspeed_stub/tested_host.hpp"

namespace yoke::deepspeed_stub {

// In the plugin, kernels/cuda_platform.cu or kernels/no_cuda.cpp defines this function.
const Platform* cuda_platform() {
  return &testing::emulated_platform();
}

namespace testing {

struct TestedHost::Impl {
  Impl() { cuda.plug_into(host); }
  EmulatedCuda cuda;
  yoke::testing::MockHost host;
};

const char* TestedHost::missing() {
  return nullptr;
}

TestedHost::TestedHost() : impl_(std::make_unique<Impl>()) {}
TestedHost::~TestedHost() = default;

const YokeHost& TestedHost::host() const {
  return impl_->host.host;
}

}  // namespace testing
}  // namespace yoke::deepspeed_stub
