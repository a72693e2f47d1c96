// AdamW, Adam and SGD over whole parameters, with the formulas that the contract gives at
// YokeOptimizer.
#pragma once

#include <ATen/core/Tensor.h>

#include <string>
#include <vector>

#include "plugins/accelerate_compat/ddp/parameters.hpp"

namespace yoke::accelerate_compat {

// Owns the moments and the step count. One thread at a time; no method communicates.
class Optimizer {
 public:
  // Allocates zero moments with the dtype of the masters. The parameters must outlive the
  // optimizer. Throws Error(INVALID_ARGUMENT) for an unknown kind of optimizer.
  Optimizer(const YokeOptimizer& config, const Parameters& parameters);

  // Updates masters and leaves from the gradients of the leaves, multiplied by `scale`, and records
  // `step`, counted from 1, as the last step. Every trainable leaf must have a gradient; its values
  // are undefined afterwards.
  void update(int64_t step, double lr, double scale);

  // kinds() returns the names of the moments, e.g. "exp_avg". moment() returns the moment of one
  // parameter; its arguments are indices into kinds() and Parameters::all(). For a frozen parameter
  // the tensor is undefined.
  const std::vector<std::string>& kinds() const { return kinds_; }
  at::Tensor moment(size_t kind, size_t parameter) const { return moments_[kind][parameter]; }
  int64_t last_step() const { return last_step_; }             // step of the last update; 0 = none
  void restore(int64_t last_step) { last_step_ = last_step; }  // called after a load
  int64_t bytes() const;                                       // bytes of all moments

 private:
  // Parameters with the same weight decay.
  struct Group {
    std::vector<size_t> members;  // indices
    double weight_decay;
  };
  std::vector<at::Tensor> gradients(const Group& group, double scale) const;
  void adamw(const Group& group, int64_t step, double lr, double scale) const;
  void sgd(const Group& group, double lr, double scale) const;

  const YokeOptimizer config_;
  const Parameters& parameters_;
  std::vector<std::string> kinds_;
  std::vector<std::vector<at::Tensor>> moments_;  // moments_[kind][parameter]
  std::vector<Group> groups_;
  at::Tensor fp32_step_;  // scalar for the fused kernel; exact up to 16 million steps
  int64_t last_step_ = 0;
};

}  // namespace yoke::accelerate_compat
