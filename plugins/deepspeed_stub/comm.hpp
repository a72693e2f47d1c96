// The host's collectives over spans. No LibTorch: through the C table alone.
#pragma once

#include <cstdint>
#include <utility>

#include "plugins/deepspeed_stub/array.hpp"
#include "yoke/backend.hpp"

namespace yoke::deepspeed_stub {

// A collective on its way; its spans must live and stay untouched until wait() has returned or this
// is destroyed, which waits too.
class Work {
 public:
  Work() = default;
  Work(const YokeCollectives* collectives, YokeWork* work)
      : collectives_(collectives), work_(work) {}
  Work(Work&& other) noexcept
      : collectives_(other.collectives_), work_(std::exchange(other.work_, nullptr)) {}
  Work& operator=(Work&& other) noexcept {
    std::swap(collectives_, other.collectives_);
    std::swap(work_, other.work_);
    return *this;
  }
  ~Work();
  void wait();  // throws Error: UNAVAILABLE, DEADLINE_EXCEEDED, CANCELLED

 private:
  const YokeCollectives* collectives_ = nullptr;
  YokeWork* work_ = nullptr;
};

// The data ranks, for one stream of operations. A default one is this rank alone: its operations
// are copies, or nothing.
class Comm {
 public:
  Comm() = default;
  // Collective over the world.
  Comm(const YokeHost& host, uint32_t axes, const char* purpose);

  int size() const { return size_; }
  int rank() const { return rank_; }
  [[nodiscard]] Work all_reduce(const Span& inout) const;  // sum
  [[nodiscard]] Work all_gather(const Span& in, const Span& out) const;
  [[nodiscard]] Work reduce_scatter(const Span& in, const Span& out) const;  // sum
  [[nodiscard]] Work broadcast(const Span& inout, int root) const;

 private:
  const YokeCollectives* collectives_ = nullptr;
  YokeComm* comm_ = nullptr;
  int size_ = 1;
  int rank_ = 0;
};

// One per stream, so that a reduction never queues behind a gather.
struct Comms {
  Comm reduce, gather, scalars;
};

}  // namespace yoke::deepspeed_stub
