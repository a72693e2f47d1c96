// Each rank computes on its own stream. The legacy default stream would wait for all other
// streams of the device, and work on it cannot be captured as a CUDA graph. Everything here goes
// through c10's device-independent interface, so that this file needs no CUDA headers and links
// without libtorch_cuda.
#include "core/cuda/rank_device.hpp"

#include <ATen/Context.h>
#include <c10/core/CachingDeviceAllocator.h>
#include <c10/core/impl/VirtualGuardImpl.h>

namespace yoke {
namespace {

// Takes a stream from LibTorch's pool, which has 32 of each priority and hands them out
// round-robin.
c10::Stream stream_of(c10::Device device) {
  at::globalContext().lazyInitDevice(c10::DeviceType::CUDA);
  const c10::impl::VirtualGuardImpl guard(c10::DeviceType::CUDA);
  return guard.getStreamFromGlobalPool(device, /*isHighPriority=*/false);
}

c10::Device device_of(int32_t index) {
  return {c10::DeviceType::CUDA, static_cast<c10::DeviceIndex>(index)};
}

}  // namespace

RankDevice::RankDevice(int32_t index)
    : runtime_(cuda_runtime()),
      stream_(stream_of(device_of(index))),
      copies_(stream_of(device_of(index))) {
  const c10::impl::VirtualGuardImpl guard(c10::DeviceType::CUDA);
  guard.setDevice(device());
  guard.exchangeStream(stream_);
}

DeviceMemory RankDevice::memory() const {
  constexpr auto kAll = static_cast<size_t>(c10::CachingAllocator::StatType::AGGREGATE);
  c10::DeviceAllocator* const allocator = c10::getDeviceAllocator(c10::DeviceType::CUDA);
  const auto stats = allocator->getDeviceStats(device().index());
  DeviceMemory memory;
  memory.peak_bytes = stats.allocated_bytes[kAll].peak;
  const auto [free, total] = allocator->getMemoryInfo(device().index());
  memory.total_bytes = static_cast<int64_t>(total);
  memory.other_bytes = static_cast<int64_t>(total - free) - stats.reserved_bytes[kAll].current;
  return memory;
}

}  // namespace yoke
