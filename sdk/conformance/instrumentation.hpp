// A host and a model with the kit in between: they watch, and fail when they are told to.
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

// Hands everything on to the host of a rank. Lives as long as the backend's context. Any thread.
class InstrumentedHost {
 public:
  explicit InstrumentedHost(const YokeHost& host);
  InstrumentedHost(const InstrumentedHost&) = delete;
  InstrumentedHost& operator=(const InstrumentedHost&) = delete;
  const YokeHost& host() const { return instrumented_; }

  std::atomic<bool> cancelled{false};
  std::atomic<bool> without_services{false};
  std::atomic<int64_t> fail_collective{-1};  // fails after so many more; -1 = never
  std::atomic<int64_t> calls{0};             // of anything
  std::string log_fault() const;             // what was wrong with a line of the log, or ""

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

// Hands everything on to the neutral callbacks of a model; a backend that uses the LibTorch
// extension goes past it. Keeps count of what is owed, and makes every borrowed thing garbage when
// its time is over. One thread at a time, as the model.
class InstrumentedModel {
 public:
  explicit InstrumentedModel(const YokeModel& model);
  InstrumentedModel(const InstrumentedModel&) = delete;
  InstrumentedModel& operator=(const InstrumentedModel&) = delete;
  const YokeModel& model() const { return instrumented_; }

  enum Callback { kInit, kBind, kForward, kBackward, kNumCallbacks };
  static const char* name(Callback callback);
  int64_t fail_after[kNumCallbacks];  // calls left before the one that fails; -1 = never
  int64_t calls[kNumCallbacks] = {};
  bool poison = true;        // gradients become garbage after their call
  bool use_offsets = false;  // gradients at an offset, with strides written out

  // What a backend still owes, in words; "" = nothing.
  std::string leaks() const;

 private:
  struct Slots;
  struct Saved;
  struct Carry;
  int32_t fails(Callback callback, YokeError* err);
  // Lends a copy of the gradient.
  int32_t deliver(const YokeBackwardArgs& args,
                  int64_t param,
                  const YokeTensor& grad,
                  YokeError* err);
  YokeManagedTensor* track(YokeManagedTensor* real);

  const YokeModel& real_;
  YokeModel instrumented_;
  int64_t live_saved_ = 0;
  std::shared_ptr<std::atomic<int64_t>> live_carries_;  // deleters may run late, on any thread
  std::string misuse_;
  std::deque<std::vector<char>> lent_;  // kept, so that who reads too late finds what is in it
};

}  // namespace yoke::conformance
