// Optimizers over the flat shards: one fused pass, the clip coefficient included where the kernel
// can. The formulas are those of YokeOptimizer in the contract.
#pragma once

#include <ATen/core/Tensor.h>

#include <memory>
#include <vector>

#include "plugins/ptd/shard_state.hpp"

namespace yoke::ptd {

// A moment of every trainable element; a flat tensor like ShardState::params.
struct Moment {
  const char* kind;  // of its pieces in a checkpoint
  at::Tensor values;
};

class Optimizer {
 public:
  virtual ~Optimizer() = default;

  // The update of a step (1 is the first): state.params from state.grads times scale, a number in
  // (0, 1]. Leaves grads undefined.
  void update(int64_t step, double lr, double scale) {
    step_ = step;
    apply(lr, scale);
  }

  const std::vector<Moment>& moments() const { return moments_; }
  int64_t& step() { return step_; }  // of the last update; 0 = none

 protected:
  virtual void apply(double lr, double scale) = 0;

  std::vector<Moment> moments_;
  int64_t step_ = 0;
};

// The state must outlive the optimizer.
std::unique_ptr<Optimizer> make_optimizer(const YokeOptimizer& config, const ShardState& state);

// The two kinds, each in its file.
std::unique_ptr<Optimizer> make_adamw(const YokeOptimizer& config, const ShardState& state);
std::unique_ptr<Optimizer> make_sgd(const YokeOptimizer& config, const ShardState& state);

}  // namespace yoke::ptd
