// Tensors that always exist, but have memory only during parts of a step.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstddef>

#include "sdk/mesh/schedule/buffer_pool.hpp"

namespace yoke::mesh {

// The buffers of one device.
class DevicePool : public BufferPool<at::DataPtr> {
 public:
  explicit DevicePool(at::Device device);
  at::Device device() const { return device_; }

 private:
  at::Device device_;
};

// A one-dimensional tensor whose memory comes from a pool or is permanent. Memory that is attached
// to it is attached to its views too: they share its StorageImpl, and only the data pointer in it
// changes. The storage owns the memory, so a collective that still runs when a failed step is
// abandoned keeps it alive.
class FlatBuffer {
 public:
  FlatBuffer(int64_t numel, at::ScalarType dtype, DevicePool& pool);  // without memory at first
  explicit FlatBuffer(at::Tensor permanent);  // attach and detach do nothing
  FlatBuffer(FlatBuffer&&) = default;

  const at::Tensor& tensor() const { return tensor_; }  // [numel]
  bool attached() const { return pool_ == nullptr || capacity_ > 0; }
  void attach();  // takes uninitialised memory from the pool, unless attached
  void detach();  // gives the memory back

 private:
  c10::StorageImpl* storage() const { return tensor_.storage().unsafeGetStorageImpl(); }
  size_t nbytes() const { return static_cast<size_t>(tensor_.numel() * tensor_.itemsize()); }

  DevicePool* pool_ = nullptr;
  at::Tensor tensor_;
  size_t capacity_ = 0;  // bytes that the storage holds; 0 = none
};

// Points the storage of a tensor to `data`, which the caller owns; nullptr unbinds it. The tensor
// must have storage offset 0. Tensors that autograd saved share the storage and get the same
// memory, which Tensor::set_data would not achieve.
void bind_storage(const at::Tensor& tensor, void* data);

}  // namespace yoke::mesh
