#include "core/cuda/rank_device.hpp"

#include <ATen/Context.h>
#include <c10/core/CachingDeviceAllocator.h>
#include <c10/core/impl/VirtualGuardImpl.h>

namespace yoke {
namespace {

c10::Stream enter(int32_t index) {
  at::globalContext().lazyInitDevice(c10::DeviceType::CUDA);
  const c10::Device device(c10::DeviceType::CUDA, static_cast<c10::DeviceIndex>(index));
  const c10::impl::VirtualGuardImpl guard(c10::DeviceType::CUDA);
  guard.setDevice(device);
  // The legacy default stream waits for all others and cannot be captured.
  const c10::Stream stream = guard.getStreamFromGlobalPool(device, /*isHighPriority=*/false);
  guard.exchangeStream(stream);
  return stream;
}

}  // namespace

RankDevice::RankDevice(int32_t index) : runtime_(cuda_runtime()), stream_(enter(index)) {}

DeviceMemory RankDevice::memory() const {
  constexpr auto kAll = static_cast<size_t>(c10::CachingAllocator::StatType::AGGREGATE);
  c10::DeviceAllocator* const allocator = c10::getDeviceAllocator(c10::DeviceType::CUDA);
  const auto stats = allocator->getDeviceStats(device().index());
  DeviceMemory memory;
  memory.peak_bytes = stats.allocated_bytes[kAll].peak;
  memory.reserved_bytes = stats.reserved_bytes[kAll].peak;
  memory.total_bytes = static_cast<int64_t>(allocator->getMemoryInfo(device().index()).second);
  return memory;
}

}  // namespace yoke
