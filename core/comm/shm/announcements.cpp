// The items lie in chunks of one page, and each chunk names the next one. So a queue has no limit,
// and its memory is used again: a writer releases a chunk when every reader has left it.
//
// There is one writer and each reader counts what it has taken, so no item has a lock. A process
// that is killed leaves the queue as it was: an item counts only once it is complete.
//
// A thread that waits looks a few thousand times and then sleeps in a futex. The writer makes the
// system call that wakes it only if somebody sleeps.
#include "core/comm/shm/announcements.hpp"

#include <linux/futex.h>
#include <sched.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <climits>
#include <ctime>
#include <utility>

namespace yoke {
namespace {

constexpr uint32_t kItems = 63;  // items of a chunk

struct Chunk {
  std::array<Announcement, kItems> items;
  alignas(64) uint64_t next;  // offset of the next chunk; valid once its first item is posted
};
static_assert(sizeof(Chunk) == 4096);

// The word is shared between processes, so the flag FUTEX_PRIVATE must not be set.
void sleep_while(std::atomic<uint32_t>& word, uint32_t value, std::chrono::nanoseconds time) {
  const timespec limit{time.count() / 1'000'000'000, time.count() % 1'000'000'000};
  ::syscall(SYS_futex, &word, FUTEX_WAIT, value, &limit, nullptr, 0);
}

uint32_t own_core() {
  return static_cast<uint32_t>(::sched_getcpu() + 1);
}

void pause() {
#if defined(__x86_64__)
  __builtin_ia32_pause();
#endif
}

}  // namespace

// Both sides use the strongest order: either the writer sees the sleeper, or the sleeper sees the
// new value.
void advance(SharedCounter& counter) {
  counter.value.fetch_add(1, std::memory_order_seq_cst);
  wake(counter);
}

void wake(SharedCounter& counter) {
  if (counter.sleepers.load(std::memory_order_seq_cst) == 0) return;
  ::syscall(SYS_futex, &counter.value, FUTEX_WAKE, INT_MAX, nullptr, nullptr, 0);
}

bool wait_past(SharedCounter& counter,
               uint32_t index,
               int spins,
               std::chrono::steady_clock::time_point until) {
  for (int i = 0; i < spins; ++i) {
    if (is_past(counter, index)) return true;
    pause();
  }
  while (!is_past(counter, index)) {
    const auto left = until - std::chrono::steady_clock::now();
    if (left.count() <= 0) return false;
    counter.sleepers.fetch_add(1, std::memory_order_seq_cst);
    const uint32_t value = counter.value.load(std::memory_order_seq_cst);
    if (static_cast<int32_t>(value - index) <= 0) sleep_while(counter.value, value, left);
    counter.sleepers.fetch_sub(1, std::memory_order_seq_cst);
  }
  return true;
}

bool QueueReaders::finished(uint32_t index) const {
  return std::all_of(
      taken_.begin(), taken_.end(), [&](const auto* taken) { return is_past(*taken, index); });
}

QueueWriter::QueueWriter(Segment& segment,
                         QueueHead& head,
                         std::shared_ptr<const QueueReaders> readers)
    : segment_(segment), head_(head), readers_(std::move(readers)) {
  chunk_ = segment_.allocate(sizeof(Chunk));
  head_.first_chunk.store(chunk_, std::memory_order_release);
}

void QueueWriter::post(const Announcement& item) {
  const uint64_t place = posted_ % kItems;
  auto* chunk = reinterpret_cast<Chunk*>(segment_.at(chunk_));
  if (place == 0 && posted_ > 0) {
    chunk->next = segment_.allocate(sizeof(Chunk));
    // A reader leaves a chunk when it takes the first item of the next one, which is this item.
    segment_.release_after(chunk_, readers_, static_cast<uint32_t>(posted_));
    chunk_ = chunk->next;
    chunk = reinterpret_cast<Chunk*>(segment_.at(chunk_));
  }
  chunk->items[place] = item;
  if (item.offset != 0)
    segment_.release_after(item.offset, readers_, static_cast<uint32_t>(posted_));
  ++posted_;
  head_.core.store(own_core(), std::memory_order_relaxed);
  advance(head_.posted);
}

QueueReader::QueueReader(const MappedSegment& segment, QueueHead& head)
    : segment_(segment), head_(head), chunk_(head.first_chunk.load(std::memory_order_acquire)) {}

// A writer that was last seen on the core of this thread cannot post while this thread looks.
bool QueueReader::await(uint64_t index,
                        int spins,
                        std::chrono::steady_clock::time_point until) const {
  const bool one_core = head_.core.load(std::memory_order_relaxed) == own_core();
  return wait_past(head_.posted, static_cast<uint32_t>(index), one_core ? 0 : spins, until);
}

const Announcement& QueueReader::front() {
  if (taken_ / kItems != chunk_number_) {
    chunk_ = reinterpret_cast<const Chunk*>(segment_.at(chunk_))->next;
    ++chunk_number_;
  }
  return reinterpret_cast<const Chunk*>(segment_.at(chunk_))->items[taken_ % kItems];
}

}  // namespace yoke
