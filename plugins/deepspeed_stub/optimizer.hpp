// AdamW over the part of the model that this rank updates.
#pragma once

#include "plugins/deepspeed_stub/array.hpp"
#include "plugins/deepspeed_stub/weights.hpp"

namespace yoke::deepspeed_stub {

class Optimizer {
 public:
  // The moments are zeroes of the master's dtype.
  Optimizer(const YokeOptimizer& config, const Store& store);

  // For the updates of one step: its number, its rate and the scale of clipping.
  void begin_step(int64_t step, double lr, double scale);
  // Updates elements [begin, begin + count) of the store from the same ones of `gradient`.
  void update(const Span& gradient, int64_t begin, int64_t count) const;

  int64_t& step() { return step_; }  // of the last update
  const Span& exp_avg() const { return exp_avg_.span(); }
  const Span& exp_avg_sq() const { return exp_avg_sq_.span(); }
  int64_t bytes() const { return exp_avg_.bytes() + exp_avg_sq_.bytes(); }

 private:
  void run(const Span& gradient, int64_t begin, int64_t count, double decay) const;

  const YokeOptimizer config_;
  const Store& store_;
  Array exp_avg_, exp_avg_sq_;
  int64_t step_ = 0;
  double lr_ = 0, scale_ = 1;
};

}  // namespace yoke::deepspeed_stub
