// A flat array that owns its memory.
#pragma once

#include <cstring>
#include <memory>
#include <utility>

#include "plugins/deepspeed_stub/device.hpp"

namespace yoke::deepspeed_stub {

// An array of `count` elements of one dtype in the memory of a device, or of the host. The
// device must outlive the array. An array can be moved but not copied. Allocating throws
// std::bad_alloc on the CPU and Error(RESOURCE_EXHAUSTED) on a CUDA device.
class Array {
 public:
  Array() = default;  // empty: no memory, no elements
  // Allocates zero-filled memory.
  Array(const Device& device, int64_t count, int32_t dtype)
      : Array(to_be_written(device, count, dtype)) {
    device.zero(span_);
  }
  Array(Array&& other) noexcept
      : memory_(std::move(other.memory_)), span_(std::exchange(other.span_, {})) {}
  Array& operator=(Array&& other) noexcept {
    memory_ = std::move(other.memory_);
    span_ = std::exchange(other.span_, {});
    return *this;
  }

  // Returns an array with uninitialised memory. The caller must write every element before reading
  // it.
  static Array to_be_written(const Device& device, int64_t count, int32_t dtype) {
    Array array;
    array.span_ = {nullptr, count, dtype};
    array.memory_ = {device.allocate(array.bytes()), Release{&device, false, false}};
    array.span_.data = array.memory_.get();
    return array;
  }

  // Returns zero-filled memory of the host, page-locked if `pinned`.
  static Array on_host(const Device& device, int64_t count, int32_t dtype, bool pinned) {
    Array array;
    array.span_ = {nullptr, count, dtype};
    array.memory_ = {device.allocate_host(array.bytes(), pinned), Release{&device, true, pinned}};
    array.span_.data = array.memory_.get();
    std::memset(array.span_.data, 0, static_cast<size_t>(array.bytes()));
    return array;
  }

  bool empty() const { return span_.data == nullptr; }
  const Span& span() const { return span_; }
  // Returns elements [begin, begin + n).
  Span sub(int64_t begin, int64_t n) const { return span_.sub(begin, n); }
  int64_t bytes() const { return span_.bytes(); }

 private:
  struct Release {
    const Device* device;
    bool on_host, pinned;
    void operator()(void* memory) const {
      if (on_host) return device->release_host(memory, pinned);
      device->release(memory);
    }
  };
  std::unique_ptr<void, Release> memory_;
  Span span_;
};

}  // namespace yoke::deepspeed_stub
