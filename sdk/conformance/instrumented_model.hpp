// InstrumentedModel: a wrapper round a model. A check passes it to the backend instead of the real
// one. It counts and examines the calls of the backend, and injects failures.
#pragma once

#include <atomic>
#include <deque>
#include <memory>
#include <string>
#include <vector>

#include "yoke/parallel_backend.h"

namespace yoke::conformance {

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
  bool other_dlpack = false;          // whether tensors for the backend are of version 2 of DLPack

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
