// The memory is a file without a name (memfd), which other processes open through /proc. It is not
// part of /dev/shm, so the size of that file system, which containers limit to 64 MiB, does not
// matter, and nothing is left of it after SIGKILL. Only processes of the same user can open it.
//
// Every process reserves addresses for the largest size when it maps the file, and the file grows
// below them. So a segment never moves, and no process has to be asked to map it again.
//
// fallocate() takes the memory when the file grows. Without it a machine that is out of memory
// would end a rank by SIGBUS, in the middle of a copy, instead of by an error.
#include "core/base/shared_segment.hpp"

#include <sys/mman.h>
#include <sys/random.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>

#include "core/base/text.hpp"
#include "yoke/error.hpp"
#include "yoke/text.hpp"

namespace yoke {
namespace {

constexpr uint64_t kAlignment = 64;       // a cache line: blocks of different ranks never share one
constexpr uint64_t kHeader = 4096;        // holds the number by which a segment is recognised
constexpr uint64_t kGrowth = 1 << 20;     // bytes by which the file grows at least
constexpr uint64_t kSweepAlways = 65536;  // least size of memory that is reused as soon as possible
constexpr size_t kMostPending = 16;       // blocks that may wait for a sweep

[[noreturn]] void refuse(const std::string& what, int code) {
  throw Error(YOKE_FAILED_PRECONDITION, what + ": " + std::strerror(code));
}

}  // namespace

void MappedSegment::map(int fd, uint64_t room) {
  // The addresses behind the end of the file become usable when the file grows.
  void* base = ::mmap(nullptr, room, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_NORESERVE, fd, 0);
  if (base == MAP_FAILED)
    refuse(concat("reserving ", bytes_text(room), " of addresses for shared memory"), errno);
  ::madvise(base, room, MADV_DONTDUMP);  // a core file would have the size of the whole room
  base_ = static_cast<char*>(base);
  room_ = room;
}

MappedSegment::MappedSegment(const SegmentAddress& at) {
  const std::string path = concat("/proc/", at.process, "/fd/", at.fd);
  const FileDescriptor file(::open(path.c_str(), O_RDWR | O_CLOEXEC));
  if (!file.open()) refuse("opening the shared memory of process " + concat(at.process), errno);
  uint64_t number = 0;
  if (::pread(file.get(), &number, sizeof number, 0) != sizeof number || number != at.number) {
    throw Error(YOKE_FAILED_PRECONDITION,
                concat(path,
                       " is not the shared memory of the other rank: the processes have "
                       "different process numbers (pid namespaces)"));
  }
  map(file.get(), at.room);
}

MappedSegment::~MappedSegment() {
  if (base_ != nullptr) ::munmap(base_, room_);
}

Segment::Segment(uint64_t room) {
  file_.reset(::memfd_create("yoke", MFD_CLOEXEC));
  if (!file_.open()) refuse("making shared memory (memfd_create)", errno);
  ::fchmod(file_.get(), 0600);
  address_ = {::getpid(), file_.get(), room, 0};
  if (::getrandom(&address_.number, sizeof address_.number, 0) != sizeof address_.number)
    refuse("making a random number", errno);
  try {
    grow(kGrowth);
  } catch (const Error& e) {
    throw Error(YOKE_FAILED_PRECONDITION, e.what());
  }
  map(file_.get(), room);
  std::memcpy(base_, &address_.number, sizeof address_.number);
  taken_[0] = kHeader;
  free_.clear();
  free_[kHeader] = end_ - kHeader;
}

uint64_t Segment::allocate(uint64_t bytes) {
  bytes = std::max<uint64_t>((bytes + kAlignment - 1) / kAlignment * kAlignment, kAlignment);
  const std::lock_guard lock(mutex_);
  if (bytes >= kSweepAlways || pending_.size() > kMostPending) sweep();
  uint64_t offset = take(bytes);
  if (offset == 0) {
    sweep();
    offset = take(bytes);
  }
  if (offset != 0) return offset;
  grow(bytes);
  return take(bytes);
}

// Takes the free block with the lowest address that is large enough: the segment stays small, and
// the same memory, which is in the caches, is used again and again. Returns 0 if there is none.
uint64_t Segment::take(uint64_t bytes) {
  for (auto it = free_.begin(); it != free_.end(); ++it) {
    const auto [offset, size] = *it;
    if (size < bytes) continue;
    free_.erase(it);
    if (size > bytes) free_[offset + bytes] = size - bytes;
    taken_[offset] = bytes;
    return offset;
  }
  return 0;
}

void Segment::release_after(uint64_t offset,
                            std::shared_ptr<const Readers> readers,
                            uint32_t index) {
  const std::lock_guard lock(mutex_);
  pending_.push_back({offset, std::move(readers), index});
}

void Segment::sweep() {
  const auto kept = std::stable_partition(pending_.begin(), pending_.end(), [](const Pending& p) {
    return !p.readers->finished(p.index);
  });
  std::for_each(kept, pending_.end(), [&](const Pending& p) { release(p.offset); });
  pending_.erase(kept, pending_.end());
}

void Segment::release(uint64_t offset) {
  const auto block = taken_.find(offset);
  uint64_t bytes = block->second;
  taken_.erase(block);
  auto next = free_.lower_bound(offset);
  if (next != free_.end() && offset + bytes == next->first) {
    bytes += next->second;
    next = free_.erase(next);
  }
  if (next != free_.begin()) {
    const auto previous = std::prev(next);
    if (previous->first + previous->second == offset) {
      previous->second += bytes;
      return;
    }
  }
  free_[offset] = bytes;
}

// Makes the file longer by `more` bytes, which become one free block. Returns why that is not
// possible; "" = it was.
std::string Segment::extend(uint64_t more) {
  if (end_ + more > address_.room) return "at most " + bytes_text(address_.room) + " are allowed";
  rlimit limit{};  // a file above this limit would end the process with SIGXFSZ
  if (::getrlimit(RLIMIT_FSIZE, &limit) == 0 && end_ + more > limit.rlim_cur)
    return "files have at most " + bytes_text(limit.rlim_cur) + " (ulimit -f)";
  int code = 0;
  do {
    code = ::fallocate(file_.get(), 0, static_cast<off_t>(end_), static_cast<off_t>(more)) == 0
               ? 0
               : errno;
  } while (code == EINTR);
  if (code != 0) return std::strerror(code);
  const uint64_t offset = end_;
  end_ += more;
  taken_[offset] = more;
  release(offset);
  return "";
}

// Makes the file longer by at least `bytes`, and by a quarter if there is that much memory.
void Segment::grow(uint64_t bytes) {
  if (extend(std::max({bytes, kGrowth, end_ / 4})).empty()) return;
  const std::string why = extend(bytes);
  if (why.empty()) return;
  throw Error(YOKE_RESOURCE_EXHAUSTED,
              concat("no shared memory of ", bytes_text(end_ + bytes), " for this rank: ", why) +
                  "; give the machine or the container more memory, or set comm.transport=gloo");
}

}  // namespace yoke
