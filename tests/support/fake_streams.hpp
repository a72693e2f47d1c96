// A device of type CUDA whose streams, events and memory are fakes, for tests on machines without a
// GPU. "Device memory" is CPU memory. Copies are done at once, and StreamLog notes to which stream
// copies, records and waits were issued. Include this in one source file of a program that does not
// load libtorch_cuda.
#pragma once

#include <ATen/EmptyTensor.h>
#include <ATen/detail/CUDAHooksInterface.h>
#include <c10/core/CPUAllocator.h>
#include <c10/core/impl/DeviceGuardImplInterface.h>
#include <torch/library.h>

#include <atomic>
#include <cstring>
#include <mutex>
#include <string>
#include <utility>
#include <vector>

#include "yoke/text.hpp"

namespace yoke::testing {

// What was issued to the streams, in the order of the calls: "copy on 2", "record on 2", "1 waits
// for 2". A number is the id of a stream. Any thread.
class StreamLog {
 public:
  static void add(const std::string& line) {
    const std::lock_guard lock(mutex());
    lines().push_back(line);
  }
  // Returns the log, which is empty afterwards.
  static std::vector<std::string> take() {
    const std::lock_guard lock(mutex());
    return std::exchange(lines(), {});
  }

 private:
  static std::mutex& mutex() {
    static std::mutex it;
    return it;
  }
  static std::vector<std::string>& lines() {
    static std::vector<std::string> it;
    return it;
  }
};

class FakeStreams final : public c10::impl::DeviceGuardImplInterface {
 public:
  static inline const c10::Device kDevice{c10::DeviceType::CUDA, 0};
  static inline thread_local c10::StreamId current = 0;

  c10::DeviceType type() const override { return kDevice.type(); }
  c10::Device exchangeDevice(c10::Device) const override { return kDevice; }
  c10::Device getDevice() const override { return kDevice; }
  void setDevice(c10::Device) const override {}
  void uncheckedSetDevice(c10::Device) const noexcept override {}
  c10::DeviceIndex deviceCount() const noexcept override { return 1; }
  c10::Stream getStream(c10::Device) const override { return stream(current); }
  c10::Stream getDefaultStream(c10::Device) const override { return stream(0); }
  c10::Stream getStreamFromGlobalPool(c10::Device, bool) const override {
    static std::atomic<c10::StreamId> last = 0;
    return stream(++last);
  }
  c10::Stream exchangeStream(c10::Stream to) const override {
    return stream(std::exchange(current, to.id()));
  }
  void record(void** event,
              const c10::Stream& on,
              c10::DeviceIndex,
              c10::EventFlag) const override {
    StreamLog::add(concat("record on ", on.id()));
    delete static_cast<c10::StreamId*>(std::exchange(*event, new c10::StreamId(on.id())));
  }
  void block(void* event, const c10::Stream& waiting) const override {
    StreamLog::add(concat(waiting.id(), " waits for ", *static_cast<c10::StreamId*>(event)));
  }
  bool queryEvent(void*) const override { return true; }
  void destroyEvent(void* event, c10::DeviceIndex) const noexcept override {
    delete static_cast<c10::StreamId*>(event);
  }

 private:
  static c10::Stream stream(c10::StreamId id) {
    return c10::Stream(c10::Stream::UNSAFE, kDevice, id);
  }
};
C10_REGISTER_GUARD_IMPL(CUDA, FakeStreams);

struct FakeCudaHooks final : at::CUDAHooksInterface {
  explicit FakeCudaHooks(at::CUDAHooksArgs) {}
  void init() const override {}
  bool hasCUDA() const override { return true; }
  bool isBuilt() const override { return true; }
  bool isAvailable() const override { return true; }
  at::Allocator* getPinnedMemoryAllocator() const override { return c10::GetCPUAllocator(); }
};
using at::CUDAHooksRegistry, at::RegistererCUDAHooksRegistry;
C10_REGISTER_CLASS(CUDAHooksRegistry, CUDAHooks, FakeCudaHooks)

// CPU memory that counts as memory of the device.
class FakeMemory final : public c10::Allocator {
 public:
  c10::DataPtr allocate(size_t bytes) override {
    c10::DataPtr memory = c10::GetCPUAllocator()->allocate(bytes);
    memory.unsafe_set_device(FakeStreams::kDevice);
    return memory;
  }
  void copy_data(void* to, const void* from, size_t bytes) const override {
    std::memcpy(to, from, bytes);
  }
  static FakeMemory* get() {
    static FakeMemory memory;
    return &memory;
  }
};

inline at::Tensor fake_empty(at::IntArrayRef size,
                             at::IntArrayRef stride,
                             std::optional<at::ScalarType> type,
                             std::optional<at::Layout>,
                             std::optional<at::Device>,
                             std::optional<bool>) {
  return at::detail::empty_strided_generic(size,
                                           stride,
                                           FakeMemory::get(),
                                           c10::DispatchKeySet(c10::DispatchKey::CUDA),
                                           type.value_or(at::kFloat));
}

inline at::Tensor& fake_copy(at::Tensor& to, const at::Tensor& from, bool) {
  StreamLog::add(concat("copy on ", FakeStreams::current));
  std::memcpy(to.mutable_data_ptr(), from.const_data_ptr(), to.nbytes());
  return to;
}

TORCH_LIBRARY_IMPL(aten, CUDA, library) {
  library.impl("empty_strided", TORCH_FN(fake_empty));
  library.impl("copy_", TORCH_FN(fake_copy));
}

}  // namespace yoke::testing
