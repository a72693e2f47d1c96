// AdamW by LibTorch's fused kernel, which reads and writes every element once.
#include <ATen/ATen.h>

#include "plugins/ptd/optim/optimizer.hpp"

namespace yoke::ptd {
namespace {

class AdamW final : public Optimizer {
 public:
  AdamW(const YokeOptimizer& config, const ShardState& state)
      : config_(config), grads_(state.grads) {
    moments_ = {{"exp_avg", at::zeros_like(state.params)},
                {"exp_avg_sq", at::zeros_like(state.params)}};
    fp32_step_ = at::zeros({}, state.params.options().dtype(at::kFloat));
    for (const ShardState::Range& range : state.ranges) {
      const auto part = [&](const at::Tensor& flat) {
        return flat.narrow(0, range.begin, range.count);
      };
      Group& group = range.decay ? decayed_ : plain_;
      group.params.push_back(part(state.params));
      group.grads.push_back(part(state.grads));
      group.exp_avgs.push_back(part(moments_[0].values));
      group.exp_avg_sqs.push_back(part(moments_[1].values));
      group.steps.push_back(fp32_step_);
    }
  }

 private:
  struct Group {
    std::vector<at::Tensor> params, grads, exp_avgs, exp_avg_sqs, steps;
  };

  void apply(double lr, double scale) override {
    fp32_step_.fill_(step_);
    std::optional<at::Tensor> divisor;
    if (scale < 1) {
      // The kernel can divide by an fp32 number on the way, which is too coarse for fp64 gradients.
      if (grads_.scalar_type() == at::kDouble) {
        grads_.mul_(scale);
      } else {
        divisor = at::full({}, 1 / scale, fp32_step_.options());
      }
    }
    run(decayed_, lr, config_.weight_decay, divisor);
    run(plain_, lr, 0, divisor);
  }

  void run(const Group& group,
           double lr,
           double decay,
           const std::optional<at::Tensor>& divisor) const {
    if (group.params.empty()) return;
    at::_fused_adamw_(group.params,
                      group.grads,
                      group.exp_avgs,
                      group.exp_avg_sqs,
                      {},
                      group.steps,
                      lr,
                      config_.beta1,
                      config_.beta2,
                      decay,
                      config_.eps,
                      /*amsgrad=*/false,
                      /*maximize=*/false,
                      divisor);
  }

  const YokeOptimizer config_;
  at::Tensor grads_;
  at::Tensor fp32_step_;  // a scalar, as the kernel wants it: exact up to 16 million steps
  Group decayed_, plain_;
};

}  // namespace

std::unique_ptr<Optimizer> make_adamw(const YokeOptimizer& config, const ShardState& state) {
  return std::make_unique<AdamW>(config, state);
}

}  // namespace yoke::ptd
