// Memory that comes and goes several times per step, behind tensors that stay.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstddef>
#include <vector>

namespace yoke::ptd {

// Idle memory of one device, to be used again. Never holds more than was in use at one time: memory
// in use plus idle memory grows only when nothing idle fits, and then the idle memory is freed
// first. One thread at a time.
class BufferPool {
 public:
  struct Buffer {
    at::DataPtr data;
    size_t capacity = 0;  // bytes
  };

  explicit BufferPool(at::Device device) : device_(device) {}

  at::Device device() const { return device_; }
  Buffer take(size_t bytes);  // not initialised
  void give_back(Buffer buffer) { idle_.push_back(std::move(buffer)); }

 private:
  at::Device device_;
  std::vector<Buffer> idle_;
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
