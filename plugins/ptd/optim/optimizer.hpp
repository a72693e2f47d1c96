// Optimizers over the flat shards: one fused pass, the clip coefficient included where the kernel
// can. The formulas are those of YokeOptimizer in the contract.
#pragma once

#include <ATen/core/Tensor.h>

#include <memory>
#include <vector>

#include "plugins/ptd/optim/grad_norm.hpp"
#include "plugins/ptd/state/shard_state.hpp"

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

  // The same without a look at what a device computes, in two halves: set() writes the numbers of
  // the step into tensors, update_with() only issues work, which may be recorded and repeated after
  // another set().
  void set(int64_t step, double lr);
  virtual void update_with(const ClipOnDevice& clip) = 0;

  const std::vector<Moment>& moments() const { return moments_; }
  int64_t& step() { return step_; }  // of the last update; 0 = none

 protected:
  explicit Optimizer(const ShardState& state);
  virtual void apply(double lr, double scale) = 0;

  std::vector<Moment> moments_;
  int64_t step_ = 0;
  at::Tensor fp32_step_;  // a scalar, as LibTorch's kernels want it: exact up to 16 million steps
  at::Tensor fp32_lr_;    // a scalar; written by set()
};

// The state must outlive the optimizer.
std::unique_ptr<Optimizer> make_optimizer(const YokeOptimizer& config, const ShardState& state);

// The two kinds, each in its file.
std::unique_ptr<Optimizer> make_adamw(const YokeOptimizer& config, const ShardState& state);
std::unique_ptr<Optimizer> make_sgd(const YokeOptimizer& config, const ShardState& state);

}  // namespace yoke::ptd
