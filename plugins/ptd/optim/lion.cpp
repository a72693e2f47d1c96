// Runs Lion as a series of single operators, because LibTorch has no kernel for it. The direction
// and a cast gradient are new tensors, so a step processes the elements part by part: a part stays
// in a CPU's cache between two operators, and no copy of all gradients is needed.
#include <ATen/ATen.h>

#include <algorithm>

#include "plugins/ptd/optim/optimizer.hpp"

namespace yoke::ptd {
namespace {

class Lion final : public Optimizer {
 public:
  Lion(const YokeOptimizer& config, const ShardState& state) : Optimizer(state), config_(config) {
    moments_ = {Moment("exp_avg", state.params)};
    const int64_t most = elements_at_a_time(state.params);
    for (const FlatSpan& span : state.spans) {
      for (int64_t done = 0; done < span.count; done += most) {
        const int64_t begin = span.begin + done, count = std::min(most, span.count - done);
        parts_.push_back({state.params.narrow(0, begin, count),
                          state.grads.narrow(0, begin, count),
                          moments_[0].values.narrow(0, begin, count),
                          span.decay ? config.weight_decay : 0});
      }
    }
  }

  void update(double scale) override {
    for (const Part& part : parts_) {
      const at::Tensor grad = part.grad.to(part.param.scalar_type()).mul_(scale);
      const at::Tensor direction = direction_of(part, grad);
      if (part.weight_decay != 0) part.param.mul_(1 - lr() * part.weight_decay);
      part.param.sub_(direction, lr());
      part.exp_avg.mul_(config_.beta2).add_(grad, 1 - config_.beta2);
    }
  }

  // A device cannot return early, so a skipped step uses a learning rate of 0 and a decay rate of
  // 1. Its gradients are replaced by 0, because 0 * NaN would still be NaN.
  void update_with(const ClipTensors& clip) override {
    const at::Tensor go = (1 - clip.skip).to(at::kDouble), goes = go.to(at::kBool);
    const at::Tensor lr = fp32_lr_ * go;
    const at::Tensor divisor =
        clip.divisor.defined() ? at::where(goes, clip.divisor, 1.0) : at::Tensor();
    const at::Tensor beta2 = 1 - go * (1 - config_.beta2);
    for (const Part& part : parts_) {
      const at::Tensor grad = at::where(goes, part.grad.to(part.param.scalar_type()), 0.0);
      if (divisor.defined()) grad.div_(divisor);
      const at::Tensor direction = direction_of(part, grad);
      if (part.weight_decay != 0) part.param.mul_(1 - lr * part.weight_decay);
      part.param.sub_(direction.mul_(lr));
      part.exp_avg.mul_(beta2).add_(grad, 1 - config_.beta2);
    }
  }

 private:
  // Views of neighbouring elements with the same weight decay.
  struct Part {
    at::Tensor param, grad, exp_avg;
    double weight_decay;
  };

  // Returns the sign of every element's change, as a new tensor. grad: already clipped.
  at::Tensor direction_of(const Part& part, const at::Tensor& grad) const {
    return (part.exp_avg * config_.beta1).add_(grad, 1 - config_.beta1).sign_();
  }

  const YokeOptimizer config_;
  std::vector<Part> parts_;
};

}  // namespace

std::unique_ptr<Optimizer> make_lion(const YokeOptimizer& config, const ShardState& state) {
  return std::make_unique<Lion>(config, state);
}

}  // namespace yoke::ptd
