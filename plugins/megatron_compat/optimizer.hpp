// AdamW and SGD on the shards of one rank, with the formulas that the contract gives at
// YokeOptimizer.
#pragma once

#include <ATen/core/Tensor.h>

#include <string>
#include <vector>

#include "plugins/megatron_compat/gradients.hpp"
#include "plugins/megatron_compat/parameters.hpp"

namespace yoke::megatron_compat {

// Owns the moments and the number of the last update. One thread at a time; nothing here
// communicates.
class Optimizer {
 public:
  // rank: number of this rank among the shards. Everything else must outlive the optimizer.
  Optimizer(const YokeOptimizer& config,
            const YokeModelSummary& model,
            const Layout& layout,
            const Parameters& parameters,
            const Gradients& gradients,
            int rank);

  // Returns the sum of the squares of this rank's gradients, an fp64 scalar on their device.
  at::Tensor squared_norm() const;
  // Makes update number `step`, the first is 1, from the gradients times scale. Their values are
  // unspecified afterwards.
  void update(int64_t step, double lr, double scale);

  // kinds() returns the names of the moments in checkpoints, moment() one of them for the shard of
  // a bucket: a flat tensor of the dtype of the master copies.
  const std::vector<std::string>& kinds() const { return kinds_; }
  const at::Tensor& moment(size_t kind, int64_t bucket) const { return moments_[kind][bucket]; }
  int64_t last_step() const { return last_step_; }  // 0 = none
  void restore(int64_t last_step) { last_step_ = last_step; }
  int64_t bytes() const;

 private:
  // Views of all elements with the same weight decay.
  struct Group {
    double weight_decay;
    std::vector<at::Tensor> values, grads;
    std::vector<std::vector<at::Tensor>> moments;  // moments of each kind
  };
  void add(const YokeModelSummary& model, const Layout& layout, int64_t bucket);
  void adamw(const Group& group, const std::vector<at::Tensor>& grads, double lr) const;
  void sgd(const Group& group, const std::vector<at::Tensor>& grads, double lr) const;

  const YokeOptimizer& config_;
  const Parameters& parameters_;
  const Gradients& gradients_;
  const int rank_;
  std::vector<std::string> kinds_;
  std::vector<std::vector<at::Tensor>> moments_;  // moments_[kind][bucket]
  std::vector<Group> groups_;                     // parameters with and without weight decay
  int64_t last_step_ = 0;
};

}  // namespace yoke::megatron_compat
