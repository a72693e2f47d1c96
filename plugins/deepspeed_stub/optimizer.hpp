// The optimizer of the elements of the model that this rank updates: AdamW, one of its variants, or
// Lion.
#pragma once

#include <vector>

#include "plugins/deepspeed_stub/array.hpp"
#include "plugins/deepspeed_stub/weights.hpp"

namespace yoke::deepspeed_stub {

// Owns the moments and the step count. Each step calls begin_step, then update for ranges that
// together cover the store, then commit. One thread at a time; no method communicates.
class Optimizer {
 public:
  // Allocates zero moments with the dtype of the master weights. config, setup and store must
  // outlive the optimizer. Throws Error(INVALID_ARGUMENT) for a kind that it does not have.
  Optimizer(const YokeOptimizer& config, const Setup& setup, const Store& store);

  // Sets the step number, counted from 1, and the learning rate for the updates that follow.
  void begin_step(int64_t step, double lr);
  // Updates elements [begin, begin + count) of the store from the same elements of `gradient`.
  // Multiplies the gradients by totals->scale, and changes nothing if totals->update is 0. totals
  // points to device memory.
  void update(const Span& gradient, int64_t begin, int64_t count, const StepTotals* totals) const;
  // Records the step of begin_step as the last committed one. Must not be called if totals->update
  // was 0.
  void commit() { last_step_ = step_; }

  int64_t last_step() const { return last_step_; }  // number of the last committed step; 0 = none
  void restore(int64_t last_step) { last_step_ = last_step; }  // called after a load

  // A moment of all elements of the store.
  struct Moment {
    const char* kind;  // kind of the checkpoint pieces with these values
    Array values;
  };
  const std::vector<Moment>& moments() const { return moments_; }
  int64_t bytes() const;  // bytes of all moments

 private:
  // A range of elements that have the same weight decay.
  struct Part {
    int64_t begin, count;
    bool decay;
  };
  void run(const Span& gradient, const Part& part, const StepTotals* totals) const;

  const YokeOptimizer config_;
  const Device& device_;
  const Store& store_;
  std::vector<Moment> moments_;
  int64_t last_step_ = 0;
  int64_t step_ = 0;  // set by begin_step, not committed yet
  double lr_ = 0;
};

}  // namespace yoke::deepspeed_stub
