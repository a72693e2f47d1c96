// Memory that is taken and given back several times per step, in the same few sizes. A pool reuses
// it and guarantees a bound that a general allocator does not: it never holds more than was in use
// at one time.
//
// Which buffer is reused or freed depends only on sizes, so the same class also predicts the memory
// of a step without running it; Memory is then an empty type.
#pragma once

#include <algorithm>
#include <cstddef>
#include <functional>
#include <utility>
#include <vector>

namespace yoke::mesh {

// Idle memory is freed only if the pool would otherwise hold more than was ever in use at one time,
// and never after keep_all(). Used by one thread at a time.
template <class Memory>
class BufferPool {
 public:
  struct Buffer {
    Memory data;
    size_t capacity = 0;  // bytes
  };

  // allocate: returns uninitialised memory of a number of bytes.
  explicit BufferPool(std::function<Memory(size_t)> allocate) : allocate_(std::move(allocate)) {}

  // Returns uninitialised memory of at least `bytes` and at most 1.25 times as much: the smallest
  // idle buffer that fits. If none fits, allocates a new one. To make space for it, first frees the
  // oldest idle buffers until the pool, including the new buffer, holds no more than was ever in
  // use at one time.
  Buffer take(size_t bytes) {
    auto best = idle_.end();
    for (auto it = idle_.begin(); it != idle_.end(); ++it) {
      const bool fits = it->capacity >= bytes && it->capacity - bytes <= bytes / 4;
      if (fits && (best == idle_.end() || it->capacity < best->capacity)) best = it;
    }
    if (best != idle_.end()) {
      Buffer found = std::move(*best);
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
    return {allocate_(bytes), bytes};
  }
  void give_back(Buffer buffer) {
    in_use_ -= buffer.capacity;
    idle_bytes_ += buffer.capacity;
    idle_.push_back(std::move(buffer));
  }
  // No memory is freed after this call, because a replayed graph may use any memory that was ever
  // taken.
  void keep_all() { keeps_all_ = true; }
  size_t held() const { return in_use_ + idle_bytes_; }  // bytes, in use and idle
  size_t most_in_use() const { return most_in_use_; }    // largest number of bytes in use so far

 private:
  std::function<Memory(size_t)> allocate_;
  std::vector<Buffer> idle_;  // oldest first
  size_t idle_bytes_ = 0;
  size_t in_use_ = 0;
  size_t most_in_use_ = 0;
  bool keeps_all_ = false;
};

}  // namespace yoke::mesh
