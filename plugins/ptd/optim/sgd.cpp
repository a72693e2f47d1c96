// Runs SGD with momentum and decoupled weight decay as a series of single operators. LibTorch's own
// SGD adds weight decay to the gradient, which differs from the contract's formula.
#include <ATen/ATen.h>

#include "plugins/ptd/optim/optimizer.hpp"

namespace yoke::ptd {
namespace {

class Sgd final : public Optimizer {
 public:
  Sgd(const YokeOptimizer& config, const ShardState& state)
      : Optimizer(state), config_(config), params_(state.params), grads_(state.grads) {
    if (config.momentum != 0) moments_ = {Moment("momentum", state.params)};
    for (const FlatSpan& span : state.spans) {
      if (span.decay) decayed_.push_back(params_.narrow(0, span.begin, span.count));
    }
  }

  void update(double scale) override {
    if (config_.weight_decay != 0) {
      for (const at::Tensor& param : decayed_) param.mul_(1 - lr() * config_.weight_decay);
    }
    if (moments_.empty()) {
      params_.add_(grads_, -lr() * scale);
      return;
    }
    const at::Tensor& momentum = moments_[0].values;
    momentum.mul_(config_.momentum).add_(grads_, scale);
    params_.add_(momentum, -lr());
  }

  // A device cannot return early, so a skipped step uses a learning rate of 0 and a momentum factor
  // of 1. Its gradients are replaced by 0, because 0 * NaN would still be NaN.
  void update_with(const ClipTensors& clip) override {
    const at::Tensor go = 1 - clip.skip, lr = fp32_lr_ * go;
    at::Tensor grads = at::where(go.to(at::kBool), grads_.to(params_.scalar_type()), 0.0);
    if (clip.divisor.defined()) grads.div_(at::where(go.to(at::kBool), clip.divisor, 1.0));
    if (config_.weight_decay != 0) {
      for (const at::Tensor& param : decayed_) param.mul_(1 - lr * config_.weight_decay);
    }
    if (moments_.empty()) {
      params_.sub_(grads * lr);
      return;
    }
    const at::Tensor& momentum = moments_[0].values;
    momentum.mul_(1 - go * (1 - config_.momentum)).add_(grads);
    params_.sub_(momentum * lr);
  }

 private:
  const YokeOptimizer config_;
  at::Tensor params_, grads_;
  std::vector<at::Tensor> decayed_;  // views of params_
};

}  // namespace

std::unique_ptr<Optimizer> make_sgd(const YokeOptimizer& config, const ShardState& state) {
  return std::make_unique<Sgd>(config, state);
}

}  // namespace yoke::ptd
