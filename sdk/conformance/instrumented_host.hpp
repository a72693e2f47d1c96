// InstrumentedHost: a wrapper round a host. A check passes it to the backend instead of the real
// one. It counts and examines the calls of the backend, and injects failures.
#pragma once

#include <array>
#include <atomic>
#include <mutex>
#include <string>

#include "yoke/parallel_backend.h"

namespace yoke::conformance {

// Forwards every call to the host of a rank. It must outlive the context of the backend. Any
// thread.
class InstrumentedHost {
 public:
  explicit InstrumentedHost(const YokeHost& host);
  InstrumentedHost(const InstrumentedHost&) = delete;
  InstrumentedHost& operator=(const InstrumentedHost&) = delete;
  const YokeHost& host() const { return instrumented_; }

  std::atomic<bool> cancelled{false};         // whether check_cancel returns 1
  std::atomic<bool> without_services{false};  // whether get_service returns NULL
  // Collectives, and waits for them, that succeed before one fails; -1 = all.
  std::atomic<int64_t> fail_collective{-1};
  std::atomic<int64_t> calls{0};         // number of calls of the host, collectives included
  std::atomic<int64_t> cancel_calls{0};  // number of calls of check_cancel
  std::atomic<int64_t> collectives{0};   // number of collectives, and of waits for them
  // Bytes of the larger side of each collective, by the axes of its communicator.
  std::array<std::atomic<int64_t>, YOKE_NUM_AXES> axis_bytes{};
  std::atomic<bool> uses_native{false};     // whether native was called, so not all is counted
  std::atomic<bool> opens_backends{false};  // whether inner backends get hosts of their own
  // Returns what is wrong with the last malformed line of the log, or "".
  std::string log_fault() const;

 private:
  struct Slots;
  void check_log_line(int32_t level, const YokeString& line);

  const YokeHost& real_;
  YokeHost instrumented_;
  const YokeCollectives* collectives_ = nullptr;
  YokeCollectives instrumented_collectives_{};
  mutable std::mutex mutex_;
  std::string log_fault_;
};

}  // namespace yoke::conformance
