// Tensors that always exist, but have memory only during parts of a step.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstddef>
#include <vector>

namespace yoke::ptd {

// Memory of one device that is taken and given back many times per step. Idle memory is reused; it
// is freed only if the pool would otherwise hold more than was ever in use at one time, and never
// after keep_all(). Used by one thread at a time.
class BufferPool {
 public:
  struct Buffer {
    at::DataPtr data;
    size_t capacity = 0;  // bytes
  };

  explicit BufferPool(at::Device device) : device_(device) {}

  at::Device device() const { return device_; }
  // Returns uninitialised memory of at least `bytes` and at most 1.25 times as much.
  Buffer take(size_t bytes);
  void give_back(Buffer buffer);
  // No memory is freed after this call, because a replayed graph may use any memory that was ever
  // taken.
  void keep_all() { keeps_all_ = true; }
  size_t held() const { return in_use_ + idle_bytes_; }  // bytes, in use and idle
  size_t most_in_use() const { return most_in_use_; }    // largest number of bytes in use so far

 private:
  at::Device device_;
  std::vector<Buffer> idle_;  // oldest first
  size_t idle_bytes_ = 0;
  size_t in_use_ = 0;
  size_t most_in_use_ = 0;
  bool keeps_all_ = false;
};

// A one-dimensional tensor whose memory comes from a pool or is permanent. Memory that is attached
// to it is attached to its views too: they share its StorageImpl, and only the data pointer in it
// changes. The storage owns the memory, so a collective that still runs when a failed step is
// abandoned keeps it alive.
class FlatBuffer {
 public:
  FlatBuffer(int64_t numel, at::ScalarType dtype, BufferPool& pool);  // without memory at first
  explicit FlatBuffer(at::Tensor permanent);  // attach and detach do nothing
  FlatBuffer(FlatBuffer&&) = default;

  const at::Tensor& tensor() const { return tensor_; }  // [numel]
  bool attached() const { return pool_ == nullptr || capacity_ > 0; }
  void attach();  // takes uninitialised memory from the pool, unless attached
  void detach();  // gives the memory back

 private:
  c10::StorageImpl* storage() const { return tensor_.storage().unsafeGetStorageImpl(); }
  size_t nbytes() const { return static_cast<size_t>(tensor_.numel() * tensor_.itemsize()); }

  BufferPool* pool_ = nullptr;
  at::Tensor tensor_;
  size_t capacity_ = 0;  // bytes that the storage holds; 0 = none
};

// Points the storage of a tensor to `data`, which the caller owns; nullptr unbinds it. The tensor
// must have storage offset 0. Tensors that autograd saved share the storage and get the same
// memory, which Tensor::set_data would not achieve.
void bind_storage(const at::Tensor& tensor, void* data);

}  // namespace yoke::ptd
