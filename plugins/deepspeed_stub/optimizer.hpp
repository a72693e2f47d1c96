// AdamW over the part of the model that this rank updates.
#pragma once

#include "plugins/deepspeed_stub/array.hpp"
#include "plugins/deepspeed_stub/weights.hpp"

namespace yoke::deepspeed_stub {

class Optimizer {
 public:
  // The moments are zeroes of the master's dtype.
  Optimizer(const YokeOptimizer& config, const Setup& setup, const Store& store);

  // Sets the number and the rate of the step whose updates follow.
  void begin_step(int64_t step, double lr);
  // Updates elements [begin, begin + count) of the store from the same ones of `gradient`, if
  // *totals, in memory of the device, allows it.
  void update(const Span& gradient, int64_t begin, int64_t count, const StepTotals* totals) const;
  // The updates of this step took place: it becomes last_step().
  void commit() { last_step_ = step_; }

  int64_t last_step() const { return last_step_; }  // last committed step; 0 = none
  void restore(int64_t last_step) { last_step_ = last_step; }
  const Span& exp_avg() const { return exp_avg_.span(); }
  const Span& exp_avg_sq() const { return exp_avg_sq_.span(); }
  int64_t bytes() const { return exp_avg_.bytes() + exp_avg_sq_.bytes(); }

 private:
  struct Part {
    int64_t begin, count;
    double decay;
  };
  void run(const Span& gradient, const Part& part, const StepTotals* totals) const;

  const YokeOptimizer config_;
  const Device& device_;
  const Store& store_;
  Array exp_avg_, exp_avg_sq_;
  int64_t last_step_ = 0, step_ = 0;
  double lr_ = 0;
};

}  // namespace yoke::deepspeed_stub
