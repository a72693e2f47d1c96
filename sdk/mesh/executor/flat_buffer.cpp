#include "sdk/mesh/executor/flat_buffer.hpp"

#include <ATen/ops/empty.h>
#include <c10/core/Allocator.h>

#include <utility>

namespace yoke::mesh {

DevicePool::DevicePool(at::Device device)
    : BufferPool(
          [device](size_t bytes) { return c10::GetAllocator(device.type())->allocate(bytes); }),
      device_(device) {}

FlatBuffer::FlatBuffer(int64_t numel, at::ScalarType dtype, DevicePool& pool)
    : pool_(&pool),
      tensor_(at::empty({0}, at::TensorOptions().dtype(dtype).device(pool.device()))) {
  tensor_.unsafeGetTensorImpl()->set_sizes_contiguous({numel});
  // The storage keeps its size while it has no memory, so that views can be made at any time.
  storage()->set_nbytes(nbytes());
}

FlatBuffer::FlatBuffer(at::Tensor permanent) : tensor_(std::move(permanent)) {}

void FlatBuffer::attach() {
  if (attached()) return;
  DevicePool::Buffer buffer = pool_->take(nbytes());
  capacity_ = buffer.capacity;
  storage()->set_data_ptr_noswap(std::move(buffer.data));
}

void FlatBuffer::detach() {
  if (pool_ == nullptr || !attached()) return;
  pool_->give_back({storage()->set_data_ptr(at::DataPtr(nullptr, tensor_.device())), capacity_});
  capacity_ = 0;
}

void bind_storage(const at::Tensor& tensor, void* data) {
  c10::StorageImpl* const storage = tensor.storage().unsafeGetStorageImpl();
  storage->set_data_ptr_noswap(at::DataPtr(data, tensor.device()));
  storage->set_nbytes(data == nullptr ? size_t{0}
                                      : static_cast<size_t>(tensor.numel() * tensor.itemsize()));
}

}  // namespace yoke::mesh
