// The device of a rank: its memory, and operations on arrays in that memory. Each operation chooses
// its kernel by dtype.
#pragma once

#include <memory>

#include "plugins/deepspeed_stub/kernels/platform.hpp"
#include "yoke/tensor.hpp"

namespace yoke::deepspeed_stub {

// On the CPU every call finishes its work before it returns. On a CUDA device a call only issues
// work to YokeHost.stream, and all work runs in the order of the calls; upload and download are the
// only calls that wait. A device may be used by one thread at a time.
//
// Spans are contiguous ranges of this device's memory. An operation throws Error(INTERNAL) if there
// is no kernel for its two dtypes, or if its two spans have different lengths.
class Device {
 public:
  // Throws Error(UNIMPLEMENTED) if this plugin has no kernels for the device of `host`.
  explicit Device(const YokeHost& host) : Device(host.device, host.stream) {}
  Device(const YokeDevice& id, void* stream);
  ~Device();
  Device(const Device&) = delete;
  Device& operator=(const Device&) = delete;
  const YokeDevice& id() const { return id_; }
  const Kernels& kernels() const { return kernels_; }
  Queue* queue() const { return queue_; }

  // Prefer Array, which releases its memory.
  void* allocate(int64_t bytes) const { return platform_.allocate(queue_, bytes); }
  void release(void* memory) const { platform_.release(queue_, memory); }
  void* allocate_host(int64_t bytes, bool pinned) const {
    return platform_.allocate_host(queue_, bytes, pinned);
  }
  void release_host(void* memory, bool pinned) const {
    platform_.release_host(queue_, memory, pinned);
  }
  void zero(const Span& x) const { platform_.zero(queue_, x.data, x.bytes()); }

  // Copy between a span and `host`, a buffer of the same size in host memory. Both wait until the
  // copy is done.
  void upload(const void* host, const Span& to) const;
  void download(const Span& from, void* host) const;

  // Whether memory of this device is not memory of the host.
  bool is_apart() const { return id_.type != YOKE_DEVICE_CPU; }
  // Issue the same copies without waiting for them: the host must not touch its memory before a
  // Mark that was made afterwards has been awaited.
  void issue_upload(const void* host, const Span& to) const;
  void issue_download(const Span& from, void* host) const;
  // A point in the queue. A Mark can be moved; the device must outlive it.
  class Mark {
   public:
    Mark() = default;  // nothing to wait for
    explicit Mark(const Device& device);
    void await();  // waits for all work that was issued before the Mark was made; at most once

   private:
    struct Drop {
      const Device* device;
      void operator()(void* mark) const { device->platform_.drop(device->queue_, mark); }
    };
    std::unique_ptr<void, Drop> mark_;
  };

  // Computes to = from, rounded to the nearest value where `to` is narrower. Supported pairs of
  // dtypes: equal ones, fp32 to bf16, fp16 or fp64, and bf16 or fp16 to fp32.
  void copy(const ConstSpan& from, const Span& to) const;
  // Computes sum += x. The dtypes are equal, or x is bf16 or fp16 and sum is fp32.
  void add(const Span& x, const Span& sum) const;
  // Copy or add several rows. Each span gives only the dtype and the start of the first row; `rows`
  // gives the number of elements, the width and the strides.
  void copy_rows(const ConstSpan& from, const Span& to, const Rows& rows) const;
  void add_rows(const Span& x, const Span& sum, const Rows& rows) const;
  // Sets *sum to the sum of the squares of x, computed in fp64. sum points to device memory.
  void squared_norm(const Span& x, double* sum) const;

 private:
  const Platform& platform_;
  const Kernels& kernels_;
  const YokeDevice id_;
  Queue* const queue_;
};

}  // namespace yoke::deepspeed_stub
