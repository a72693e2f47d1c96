// The optimizer of the elements of the model that this rank updates: AdamW, one of its variants, or
// Lion.
#pragma once

#include <optional>
#include <vector>

#include "plugins/deepspeed_stub/offload/state_arrays.hpp"
#include "plugins/deepspeed_stub/weights.hpp"

namespace yoke::deepspeed_stub {

// Owns the moments and the step count. Each step calls begin_step, then update for consecutive
// ranges that together cover the store, then finish_step, then commit. One thread at a time; no
// method communicates.
//
// State that is offloaded is updated by the CPU. If the device is a GPU, gradients come to host
// memory and updated parameters go back in parts: while the CPU updates one part, the gradients of
// the next one and the parameters of the one before are copied.
class Optimizer {
 public:
  // Allocates zero moments with the dtype of the master weights. config, setup and store must
  // outlive the optimizer. Throws Error(INVALID_ARGUMENT) for a kind that it does not have.
  Optimizer(const YokeOptimizer& config, const Setup& setup, const Store& store);
  ~Optimizer();

  // Starts to read state from files, if it is read ahead. May be called at any time before
  // begin_step.
  void prefetch() { moments_state_.prefetch(); }
  // Sets the step number, counted from 1, and the learning rate for the updates that follow.
  void begin_step(int64_t step, double lr);
  // Updates elements [begin, begin + count) of the store from the same elements of `gradient`.
  // totals: one StepTotals in device memory. Multiplies the gradients by its scale, and changes
  // nothing if its update is 0.
  void update(const Span& gradient, int64_t begin, int64_t count, const Span& totals);
  // Returns when all moments are where they are kept.
  void finish_step() { moments_state_.finish(); }
  // Records the step of begin_step as the last committed one. Must not be called if totals->update
  // was 0.
  void commit() { last_step_ = step_; }

  int64_t last_step() const { return last_step_; }  // number of the last committed step; 0 = none
  void restore(int64_t last_step) { last_step_ = last_step; }  // called after a load

  // A moment of all elements of the store.
  struct Moment {
    const char* kind;  // kind of the checkpoint pieces with these values
    Values values;
  };
  const std::vector<Moment>& moments() const { return moments_; }
  int64_t bytes() const { return moments_state_.bytes(); }  // bytes of moments in memory

 private:
  // A range of elements that have the same weight decay, and whose state is at one place.
  struct Part {
    int64_t begin, count;
    bool decay;
  };
  // Host memory for the copies of a part, while other parts are updated.
  struct Stage {
    Array gradient, values;
    Device::Mark arrived;  // `gradient` is complete
    Device::Mark sent;     // `values` may be overwritten
  };
  std::vector<Part> parts_of(int64_t begin, int64_t end) const;
  void run(const Span& gradient, const Part& part, const StepTotals* totals) const;
  void run_on_host(const Span& gradient, const std::vector<Part>& parts);
  void fetch(const Span& gradient, const Part& part, Stage& stage) const;
  void launch(const Device& where,
              const Part& part,
              const Span& gradient,
              const Span& copy,
              const StepTotals* totals) const;

  const YokeOptimizer config_;
  const Device &device_, &host_;
  const bool pinned_;
  const Store& store_;
  StateArrays moments_state_;
  std::vector<Moment> moments_;
  Stage stages_[2];
  int64_t last_step_ = 0;
  int64_t step_ = 0;  // set by begin_step, not committed yet
  double lr_ = 0;
  std::optional<StepTotals> totals_;  // those of this step, if the host updates
};

}  // namespace yoke::deepspeed_stub
