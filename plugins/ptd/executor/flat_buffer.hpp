// Memory that comes and goes several times per step, behind tensors that stay.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstddef>
#include <vector>

namespace yoke::ptd {

// Memory of one device that is taken and given back many times per step. What is idle is used
// again; it is freed only where it would make the pool hold more than was ever in use at one time,
// and never after keep_all().
// One thread at a time.
class BufferPool {
 public:
  struct Buffer {
    at::DataPtr data;
    size_t capacity = 0;  // bytes
  };

  explicit BufferPool(at::Device device) : device_(device) {}

  at::Device device() const { return device_; }
  Buffer take(size_t bytes);  // not initialised; up to a quarter larger than asked for
  void give_back(Buffer buffer);
  // From now on work that is repeated may use any of the memory that was handed out.
  void keep_all() { keeps_all_ = true; }
  size_t held() const { return in_use_ + idle_bytes_; }  // bytes
  size_t most_in_use() const { return most_in_use_; }    // bytes, ever

 private:
  at::Device device_;
  std::vector<Buffer> idle_;  // oldest first
  size_t idle_bytes_ = 0;
  size_t in_use_ = 0;
  size_t most_in_use_ = 0;
  bool keeps_all_ = false;
};

// A one-dimensional tensor whose memory comes from a pool, or stays for good. Views of it follow:
// they share its StorageImpl, whose data pointer is what changes. The storage owns the memory, so
// that a collective that still runs when a failed step is dropped keeps it alive.
class FlatBuffer {
 public:
  FlatBuffer(int64_t numel, at::ScalarType dtype, BufferPool& pool);  // without memory
  explicit FlatBuffer(at::Tensor permanent);  // attach and detach do nothing
  FlatBuffer(FlatBuffer&&) = default;

  const at::Tensor& tensor() const { return tensor_; }
  bool attached() const { return pool_ == nullptr || capacity_ > 0; }
  void attach();
  void detach();

 private:
  c10::StorageImpl* storage() const { return tensor_.storage().unsafeGetStorageImpl(); }
  size_t nbytes() const { return static_cast<size_t>(tensor_.numel() * tensor_.itemsize()); }

  BufferPool* pool_ = nullptr;
  at::Tensor tensor_;
  size_t capacity_ = 0;  // of the memory that the storage holds; 0 = none
};

// Points the storage of a tensor with offset 0 at memory that somebody else owns; NULL unbinds.
// Tensors saved by autograd follow, which Tensor::set_data would not give.
void bind_storage(const at::Tensor& tensor, void* data);

}  // namespace yoke::ptd
