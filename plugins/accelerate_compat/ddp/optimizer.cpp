#include "plugins/accelerate_compat/ddp/optimizer.hpp"

#include <ATen/ATen.h>

#include <algorithm>

#include "yoke/optimizer.h"
#include "yoke/optimizer_name.hpp"

namespace yoke::accelerate_compat {
namespace {

// LibTorch's kernels always correct the moments, by 1 - beta^step. At this step the factor is 1 for
// every beta below 1, in fp32 and in fp64.
constexpr double kLateStep = 0x1p62;

// Returns the tensors with the given indices.
std::vector<at::Tensor> pick(const std::vector<at::Tensor>& all, const std::vector<size_t>& which) {
  std::vector<at::Tensor> picked;
  picked.reserve(which.size());
  for (const size_t i : which) picked.push_back(all[i]);
  return picked;
}

}  // namespace

Optimizer::Optimizer(const YokeOptimizer& config, const Parameters& parameters)
    : config_(config),
      parameters_(parameters),
      fp32_step_(at::zeros({}, parameters.all().front().master.options().dtype(at::kFloat))) {
  if (!yoke_is_adam(config.kind) && config.kind != YOKE_SGD)
    throw Error(YOKE_INVALID_ARGUMENT,
                "accelerate_compat does not have the optimizer " + optimizer_name(config.kind) +
                    "; it has adamw, adam and sgd");
  const char* kinds[2];
  const int count = yoke_moments(&config, kinds);
  kinds_.assign(kinds, kinds + count);
  groups_ = {{{}, config.weight_decay}, {{}, 0}};  // parameters with and without weight decay
  moments_.resize(kinds_.size());
  const std::vector<Parameter>& all = parameters.all();
  for (size_t p = 0; p < all.size(); ++p) {
    const bool trained = all[p].info->trainable != 0;
    for (auto& of_kind : moments_)
      of_kind.push_back(trained ? at::zeros_like(all[p].master) : at::Tensor());
    if (trained) groups_[all[p].info->decay != 0 ? 0 : 1].members.push_back(p);
  }
}

void Optimizer::update(int64_t step, double lr, double scale) {
  for (const Group& group : groups_) {
    if (group.members.empty()) continue;
    if (yoke_is_adam(config_.kind)) {
      adamw(group, step, lr, scale);
    } else {
      sgd(group, lr, scale);
    }
  }
  parameters_.publish();
  last_step_ = step;
}

// Returns the gradients of a group in the dtype of the masters, multiplied by scale. If the dtypes
// are equal, the returned tensors share memory with the leaves' gradients, which are then scaled in
// place.
std::vector<at::Tensor> Optimizer::gradients(const Group& group, double scale) const {
  std::vector<at::Tensor> grads;
  grads.reserve(group.members.size());
  for (const size_t p : group.members) {
    const Parameter& parameter = parameters_.all()[p];
    grads.push_back(parameter.leaf.grad().to(parameter.master.scalar_type()));
  }
  if (scale != 1) at::_foreach_mul_(grads, scale);
  return grads;
}

void Optimizer::adamw(const Group& group, int64_t step, double lr, double scale) const {
  std::vector<at::Tensor> masters;
  masters.reserve(group.members.size());
  for (const size_t p : group.members) masters.push_back(parameters_.all()[p].master);
  const bool corrects = config_.kind == YOKE_ADAMW || config_.kind == YOKE_ADAM;
  const bool adds_decay = config_.kind == YOKE_ADAM || config_.kind == YOKE_ADAM_UNCORRECTED;
  fp32_step_.fill_(corrects ? static_cast<double>(step) : kLateStep);
  const auto run = [&](const auto&... arguments) {
    adds_decay ? at::_fused_adam_(arguments...) : at::_fused_adamw_(arguments...);
  };
  run(masters,
      gradients(group, scale),
      pick(moments_[0], group.members),
      pick(moments_[1], group.members),
      at::TensorList(),
      std::vector<at::Tensor>(masters.size(), fp32_step_),
      lr,
      config_.beta1,
      config_.beta2,
      group.weight_decay,
      config_.eps,
      /*amsgrad=*/false,
      /*maximize=*/false);
}

void Optimizer::sgd(const Group& group, double lr, double scale) const {
  const std::vector<at::Tensor> grads = gradients(group, scale);
  for (size_t i = 0; i < grads.size(); ++i) {
    const size_t p = group.members[i];
    const at::Tensor& master = parameters_.all()[p].master;
    if (group.weight_decay != 0) master.mul_(1 - lr * group.weight_decay);
    if (moments_.empty()) {
      master.add_(grads[i], -lr);
    } else {
      master.add_(moments_[0][p].mul_(config_.momentum).add_(grads[i]), -lr);
    }
  }
}

int64_t Optimizer::bytes() const {
  int64_t bytes = 0;
  for (const auto& of_kind : moments_) {
    for (const at::Tensor& values : of_kind)
      bytes += values.defined() ? static_cast<int64_t>(values.nbytes()) : 0;
  }
  return bytes;
}

}  // namespace yoke::accelerate_compat
