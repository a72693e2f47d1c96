// InstrumentedHost and InstrumentedModel: wrappers round a host and a model. A check passes them to
// the backend instead of the real ones. They count and examine the calls of the backend, and inject
// failures.
#pragma once

#include <atomic>
#include <deque>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

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
  std::atomic<int64_t> fail_collective{-1};   // collectives that succeed before one fails; -1 = all
  std::atomic<int64_t> calls{0};              // number of calls of the host, collectives included
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

// Forwards every call to the neutral callbacks of a model. A backend that uses the LibTorch
// extension bypasses this wrapper. The wrapper counts the objects that the backend owns, and
// overwrites borrowed memory when the contract no longer allows the backend to read it. One thread
// at a time, as for the model.
class InstrumentedModel {
 public:
  explicit InstrumentedModel(const YokeModel& model);
  InstrumentedModel(const InstrumentedModel&) = delete;
  InstrumentedModel& operator=(const InstrumentedModel&) = delete;
  const YokeModel& model() const { return instrumented_; }

  enum Callback { kInit, kBind, kForward, kBackward, kNumCallbacks };
  static const char* name(Callback callback);
  int64_t fail_after[kNumCallbacks];  // calls that succeed before one fails; -1 = all
  int64_t calls[kNumCallbacks] = {};  // calls so far
  bool poison = true;                 // whether to overwrite gradients after on_grad_ready
  bool use_offsets = false;           // whether gradients get a byte_offset and explicit strides

  // Returns a sentence on what the backend has not released yet, or "".
  std::string leaks() const;

 private:
  struct Slots;
  struct Saved;
  struct Carry;
  // Counts a call. Returns YOKE_OK, or the code of the injected failure.
  int32_t fails(Callback callback, YokeError* err);
  // Passes a copy of a gradient to the backend, and overwrites it afterwards if `poison` is set.
  int32_t deliver(const YokeBackwardArgs& args,
                  int64_t param,
                  const YokeTensor& grad,
                  YokeError* err);
  // Wraps a tensor that the backend will own, so that its deletion is counted.
  YokeManagedTensor* track(YokeManagedTensor* real);

  const YokeModel& real_;
  YokeModel instrumented_;
  int64_t live_saved_ = 0;
  std::shared_ptr<std::atomic<int64_t>>
      live_carries_;  // deleters may run on any thread, and after this object is gone
  std::string misuse_;
  std::deque<std::vector<char>>
      lent_;  // copies of gradients; kept, so that a late read finds the overwritten values
};

}  // namespace yoke::conformance
