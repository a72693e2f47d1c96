// Memory that one process shares with other processes of its machine and user. No LibTorch.
#pragma once

#include <cstdint>
#include <deque>
#include <map>
#include <memory>
#include <mutex>
#include <string>

#include "core/base/file_descriptor.hpp"

namespace yoke {

// Where other processes find a segment.
struct SegmentAddress {
  int64_t process = 0;
  int fd = -1;          // number of the descriptor in that process
  uint64_t room = 0;    // bytes of addresses that the segment may grow to
  uint64_t number = 0;  // a random number that the segment begins with
};

// A segment in the addresses of this process. Bytes that its owner allocates later become visible
// without a further call.
class MappedSegment {
 public:
  // Maps the segment of another process. Throws Error(FAILED_PRECONDITION) with the reason.
  explicit MappedSegment(const SegmentAddress& at);
  ~MappedSegment();
  MappedSegment(const MappedSegment&) = delete;
  MappedSegment& operator=(const MappedSegment&) = delete;

  char* at(uint64_t offset) const { return base_ + offset; }

 protected:
  MappedSegment() = default;
  void map(int fd, uint64_t room);

  char* base_ = nullptr;
  uint64_t room_ = 0;
};

// Counts how far the readers of something in a segment have come.
class Readers {
 public:
  virtual ~Readers() = default;
  // Returns true if all readers have finished with item `index`. Must not block. Any thread.
  virtual bool finished(uint32_t index) const = 0;
};

// A segment of this process, and the allocation of its memory. It has no name, so nothing is left
// of it when the last process that maps it ends. All functions may be called from any thread.
class Segment final : public MappedSegment {
 public:
  // room: bytes of address space to reserve; memory is committed when a block of it is allocated.
  // Throws Error(FAILED_PRECONDITION), with the reason and the size, if the system cannot provide
  // shared memory.
  explicit Segment(uint64_t room);

  const SegmentAddress& address() const { return address_; }

  // Returns the offset of a block of at least `bytes`, at a multiple of 64. Never 0. Throws
  // Error(RESOURCE_EXHAUSTED) if there is no memory.
  uint64_t allocate(uint64_t bytes);
  // Releases a block once the readers have finished with item `index`.
  void release_after(uint64_t offset, std::shared_ptr<const Readers> readers, uint32_t index);

 private:
  struct Pending {
    uint64_t offset;
    std::shared_ptr<const Readers> readers;
    uint32_t index;
  };

  uint64_t take(uint64_t bytes);
  void sweep();
  void release(uint64_t offset);
  void grow(uint64_t bytes);
  std::string extend(uint64_t more);

  FileDescriptor file_;
  SegmentAddress address_;
  std::mutex mutex_;
  uint64_t end_ = 0;                    // bytes of the file
  std::map<uint64_t, uint64_t> free_;   // offset -> bytes; neighbours are joined
  std::map<uint64_t, uint64_t> taken_;  // offset -> bytes
  std::deque<Pending> pending_;
};

}  // namespace yoke
