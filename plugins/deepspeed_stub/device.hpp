// The device of a rank: its memory, and arithmetic over it that chooses the kernel by dtype.
#pragma once

#include "plugins/deepspeed_stub/kernels/platform.hpp"
#include "yoke/tensor.hpp"

namespace yoke::deepspeed_stub {

// On the CPU every call finishes its work before it returns. On a CUDA device a call only issues
// work to YokeHost.stream, and all work runs in the order of the calls; upload and download are the
// only calls that wait. A device may be used by one thread at a time.
//
// Spans are compact ranges in memory of this device. A pair of dtypes without a kernel throws
// Error(INTERNAL), and so does a pair of spans of different lengths.
class Device {
 public:
  // Throws Error(UNIMPLEMENTED) if this plugin has no kernels for the device of `host`.
  explicit Device(const YokeHost& host);
  ~Device();
  Device(const Device&) = delete;
  Device& operator=(const Device&) = delete;
  const YokeDevice& id() const { return id_; }
  const Kernels& kernels() const { return kernels_; }
  Queue* queue() const { return queue_; }

  // Prefer Array, which releases its memory.
  void* allocate(int64_t bytes) const { return platform_.allocate(queue_, bytes); }
  void release(void* memory) const { platform_.release(queue_, memory); }
  void zero(const Span& x) const { platform_.zero(queue_, x.data, x.bytes()); }

  // Copy between the device and `host`, which is memory of the host with as many bytes as the span.
  // Both wait until the copy is done.
  void upload(const void* host, const Span& to) const;
  void download(const Span& from, void* host) const;

  // to = from, rounded to the nearest value where `to` is narrower. Possible pairs of dtypes: equal
  // ones, fp32 to any, bf16 to fp32.
  void copy(const ConstSpan& from, const Span& to) const;
  // sum += x. x may be bf16 where the sum is fp32.
  void add(const Span& x, const Span& sum) const;
  // copy and add for several rows. Both spans are the first row; `rows` gives width and strides.
  void copy_rows(const ConstSpan& from, const Span& to, const Rows& rows) const;
  void add_rows(const Span& x, const Span& sum, const Rows& rows) const;
  // *sum = the sum of the squares of x, in fp64. sum points to memory of the device.
  void squared_norm(const Span& x, double* sum) const;

 private:
  const Platform& platform_;
  const Kernels& kernels_;
  const YokeDevice id_;
  Queue* const queue_;
};

}  // namespace yoke::deepspeed_stub
