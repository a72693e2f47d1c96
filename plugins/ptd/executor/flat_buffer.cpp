// Buffers for whole parameters and gradients are taken and given back several times per step, in
// the same few sizes. The pool reuses their memory and guarantees a bound that a general allocator
// does not: it never holds more than was in use at one time. Idle buffers therefore do not add to
// the peak that the checker computes.
#include "plugins/ptd/executor/flat_buffer.hpp"

#include <ATen/ops/empty.h>
#include <c10/core/Allocator.h>

#include <algorithm>
#include <utility>

namespace yoke::ptd {

// Returns the smallest idle buffer that fits. If none fits, allocates a new one. To make space for
// it, first frees the oldest idle buffers until the pool, including the new buffer, holds no more
// than was ever in use at one time.
BufferPool::Buffer BufferPool::take(size_t bytes) {
  auto best = idle_.end();
  for (auto it = idle_.begin(); it != idle_.end(); ++it) {
    const bool fits = it->capacity >= bytes && it->capacity - bytes <= bytes / 4;
    if (fits && (best == idle_.end() || it->capacity < best->capacity)) best = it;
  }
  Buffer found;
  if (best != idle_.end()) {
    found = std::move(*best);
    idle_.erase(best);
    idle_bytes_ -= found.capacity;
    in_use_ += found.capacity;
    return found;
  }
  in_use_ += bytes;
  most_in_use_ = std::max(most_in_use_, in_use_);
  while (held() > most_in_use_ && !keeps_all_) {
    idle_bytes_ -= idle_.front().capacity;
    idle_.erase(idle_.begin());
  }
  return {c10::GetAllocator(device_.type())->allocate(bytes), bytes};
}

void BufferPool::give_back(Buffer buffer) {
  in_use_ -= buffer.capacity;
  idle_bytes_ += buffer.capacity;
  idle_.push_back(std::move(buffer));
}

FlatBuffer::FlatBuffer(int64_t numel, at::ScalarType dtype, BufferPool& pool)
    : pool_(&pool),
      tensor_(at::empty({0}, at::TensorOptions().dtype(dtype).device(pool.device()))) {
  tensor_.unsafeGetTensorImpl()->set_sizes_contiguous({numel});
  // The storage keeps its size while it has no memory, so that views can be made at any time.
  storage()->set_nbytes(nbytes());
}

FlatBuffer::FlatBuffer(at::Tensor permanent) : tensor_(std::move(permanent)) {}

void FlatBuffer::attach() {
  if (attached()) return;
  BufferPool::Buffer buffer = pool_->take(nbytes());
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

}  // namespace yoke::ptd
