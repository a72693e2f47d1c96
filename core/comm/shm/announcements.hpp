// A queue in shared memory: one process appends, others read, and nobody waits to append.
#pragma once

#include <array>
#include <atomic>
#include <chrono>
#include <cstdint>
#include <memory>
#include <vector>

#include "core/base/shared_segment.hpp"
#include "core/comm/signature.hpp"

namespace yoke {

// A number that processes share, which only grows. Wraps around after 2^32.
struct alignas(64) SharedCounter {
  std::atomic<uint32_t> value;
  std::atomic<uint32_t> sleepers;  // threads that sleep until the value grows
};
static_assert(std::atomic<uint32_t>::is_always_lock_free);

// Adds 1 and wakes the sleepers. What this thread has written before is visible to a thread that
// reads the new value.
void advance(SharedCounter& counter);
// Wakes the sleepers, which then look for the reason themselves.
void wake(SharedCounter& counter);
// Returns true once the counter has passed `index`, false after `until`. spins: how often to look
// before the thread sleeps.
bool wait_past(SharedCounter& counter,
               uint32_t index,
               int spins,
               std::chrono::steady_clock::time_point until);
// Returns true if the counter has passed `index`, that is, item `index` is there.
inline bool is_past(const SharedCounter& counter, uint32_t index) {
  return static_cast<int32_t>(counter.value.load(std::memory_order_acquire) - index) > 0;
}

// One item: what a rank issues, and where its data is.
struct alignas(64) Announcement {
  Signature signature;
  uint64_t offset;  // offset of the data in the segment of the rank; 0 = none
  uint64_t bytes;
};

// The head of a queue. Lies in the segment of its writer, all bytes 0 at first.
struct QueueHead {
  SharedCounter posted;  // number of items
  alignas(64) std::atomic<uint64_t> first_chunk;
  alignas(64) std::atomic<uint32_t> core;  // 1 + the core on which the writer posted last
};

// The counters of all readers of a queue: how many items each has taken.
class QueueReaders final : public Readers {
 public:
  // Adds a reader. Must not be called after the first item.
  void add(const SharedCounter& taken) { taken_.push_back(&taken); }
  bool finished(uint32_t index) const override;

 private:
  std::vector<const SharedCounter*> taken_;
};

// Appends to a queue. One thread at a time.
class QueueWriter {
 public:
  QueueWriter(Segment& segment, QueueHead& head, std::shared_ptr<const QueueReaders> readers);
  // Appends an item and takes over the block of its data, which is released when all readers have
  // taken the item. Throws Error(RESOURCE_EXHAUSTED).
  void post(const Announcement& item);

 private:
  Segment& segment_;
  QueueHead& head_;
  std::shared_ptr<const QueueReaders> readers_;
  uint64_t chunk_ = 0;   // offset of the chunk of the latest item
  uint64_t posted_ = 0;  // number of items
};

// Reads a queue. One thread at a time, except where noted.
class QueueReader {
 public:
  // segment: that of the writer.
  QueueReader(const MappedSegment& segment, QueueHead& head);
  // Returns true if item `index` is there. Any thread.
  bool has(uint64_t index) const { return is_past(head_.posted, static_cast<uint32_t>(index)); }
  // Returns true if there is an item that has not been taken.
  bool has_item() const { return has(taken_); }
  // Returns the next item; only if there is one.
  const Announcement& front();
  // Takes the next item. The writer keeps its data until the counter of this reader has advanced.
  void pop() { ++taken_; }
  uint64_t taken() const { return taken_; }  // number of items that have been taken
  // Waits until item `index` is there; false after `until`. Any thread. spins: as in wait_past().
  bool await(uint64_t index, int spins, std::chrono::steady_clock::time_point until) const;

 private:
  const MappedSegment& segment_;
  QueueHead& head_;
  uint64_t chunk_;             // offset of the chunk from which the latest item was read
  uint64_t chunk_number_ = 0;  // its number, from 0
  uint64_t taken_ = 0;
};

}  // namespace yoke
