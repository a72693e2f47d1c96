// The device of a rank: its memory, and the arithmetic over it without regard to the dtype. On a
// CUDA device a call comes back before its work is done; all work runs in the order of the calls,
// on YokeHost.stream. One thread at a time.
#pragma once

#include "plugins/deepspeed_stub/kernels/platform.hpp"
#include "yoke/tensor.hpp"

namespace yoke::deepspeed_stub {

class Device {
 public:
  // Throws Error(UNIMPLEMENTED) if this plugin has no kernels for it.
  explicit Device(const YokeHost& host);
  ~Device();
  Device(const Device&) = delete;
  Device& operator=(const Device&) = delete;
  const YokeDevice& id() const { return id_; }
  const Kernels& kernels() const { return kernels_; }
  Queue* queue() const { return queue_; }

  void* allocate(int64_t bytes) const { return platform_.allocate(queue_, bytes); }
  void release(void* memory) const { platform_.release(queue_, memory); }
  void zero(const Span& x) const { platform_.zero(queue_, x.data, x.bytes()); }
  // `host` is memory of the host, with as many bytes as the span has. These wait.
  void upload(const void* host, const Span& to) const;
  void download(const Span& from, void* host) const;

  // to = from, rounded if need be. Both have the same count. Pairs of dtypes: equal ones, fp32 to
  // any, bf16 to fp32.
  void copy(const ConstSpan& from, const Span& to) const;
  // sum += x; x may be bf16 where the sum is fp32.
  void add(const Span& x, const Span& sum) const;
  // The same for many rows; both spans are the first one.
  void copy_rows(const ConstSpan& from, const Span& to, const Rows& rows) const;
  void add_rows(const Span& x, const Span& sum, const Rows& rows) const;
  // *sum is memory of the device.
  void squared_norm(const Span& x, double* sum) const;

 private:
  const Platform& platform_;
  const Kernels& kernels_;
  const YokeDevice id_;
  Queue* const queue_;
};

}  // namespace yoke::deepspeed_stub
