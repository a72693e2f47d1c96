// AdamW and SGD on the parameters that one rank owns, with the formulas that the contract gives at
// YokeOptimizer.
#pragma once

#include <ATen/core/Tensor.h>

#include <functional>
#include <string>
#include <vector>

#include "sdk/compat/parameters.hpp"

namespace yoke::compat {

// Adds the sum of the squares of a flat tensor to `sum`, an fp64 scalar on its device.
void add_squares(const at::Tensor& values, const at::Tensor& sum);

// Owns the moments and the number of the last update. One thread at a time; nothing here
// communicates.
class Optimizer {
 public:
  // gradients: the buffer of all gradients, with the layout of the parameters. counts: whether
  // squared_norm() includes a parameter. Everything else must outlive the optimizer.
  Optimizer(const YokeOptimizer& config,
            const YokeModelSummary& model,
            const FlatLayout& layout,
            const Parameters& parameters,
            const at::Tensor& gradients,
            const std::function<bool(int64_t param)>& counts);

  // Returns the sum of the squares of the gradients that this rank owns and counts, an fp64 scalar
  // on their device.
  at::Tensor squared_norm() const;
  // Makes update number `step`, the first is 1, from the gradients times scale. Their values are
  // unspecified afterwards.
  void update(int64_t step, double lr, double scale);

  // kinds() returns the names of the moments in checkpoints, moment() one of them for a range of
  // Parameters::owned(): a flat tensor of the dtype of the master copies.
  const std::vector<std::string>& kinds() const { return kinds_; }
  const at::Tensor& moment(size_t kind, size_t i) const { return moments_[kind][i]; }
  int64_t last_step() const { return last_step_; }  // 0 = none
  void restore(int64_t last_step) { last_step_ = last_step; }
  int64_t bytes() const;

 private:
  // Views of all elements that are treated alike.
  struct Group {
    double weight_decay;
    bool counts;  // whether the norm includes it
    std::vector<at::Tensor> values, grads;
    std::vector<std::vector<at::Tensor>> moments;  // moments of each kind
  };
  void add(const YokeModelSummary& model,
           const FlatLayout& layout,
           const std::function<bool(int64_t param)>& counts,
           size_t i);
  void adamw(const Group& group, const std::vector<at::Tensor>& grads, double lr) const;
  void sgd(const Group& group, const std::vector<at::Tensor>& grads, double lr) const;

  const YokeOptimizer& config_;
  const Parameters& parameters_;
  const at::Tensor gradients_;
  std::vector<std::string> kinds_;
  std::vector<std::vector<at::Tensor>> moments_;  // moments_[kind][range of owned()]
  std::vector<Group> groups_;
  int64_t last_step_ = 0;
};

}  // namespace yoke::compat
