// AdamW and SGD over whole parameters; the formulas are those of YokeOptimizer in the contract.
#pragma once

#include <ATen/core/Tensor.h>

#include <string>
#include <vector>

#include "plugins/accelerate_compat/ddp/parameters.hpp"

namespace yoke::accelerate_compat {

// One thread at a time.
class Optimizer {
 public:
  // The parameters outlive the optimizer. Throws Error(INVALID_ARGUMENT) for an unknown kind.
  Optimizer(const YokeOptimizer& config, const Parameters& parameters);

  // The update of a step (1 is the first) from the gradients in the leaves times scale.
  // Every trainable leaf has one. Leaves them undefined in value.
  void update(int64_t step, double lr, double scale);

  // Kinds of its moments, and the values of one for a parameter by its index; undefined if frozen.
  const std::vector<std::string>& kinds() const { return kinds_; }
  at::Tensor moment(size_t kind, size_t parameter) const { return moments_[kind][parameter]; }
  int64_t last_step() const { return last_step_; }  // step of the last update; 0 = none
  void restore(int64_t last_step) { last_step_ = last_step; }
  int64_t bytes() const;

 private:
  // Parameters that are updated alike.
  struct Group {
    std::vector<size_t> members;
    double weight_decay;
  };
  std::vector<at::Tensor> gradients(const Group& group, double scale) const;
  void adamw(const Group& group, int64_t step, double lr, double scale) const;
  void sgd(const Group& group, double lr, double scale) const;

  const YokeOptimizer config_;
  const Parameters& parameters_;
  std::vector<std::string> kinds_;
  std::vector<std::vector<at::Tensor>> moments_;  // by kind, then by parameter
  std::vector<Group> groups_;
  at::Tensor fp32_step_;  // a scalar, as the kernel wants it: exact up to 16 million steps
  int64_t last_step_ = 0;
};

}  // namespace yoke::accelerate_compat
