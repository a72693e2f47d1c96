// AdamW by LibTorch's fused kernel, which reads and writes every element once.
#include <ATen/ATen.h>

#include <algorithm>

#include "plugins/ptd/optim/optimizer.hpp"

namespace yoke::ptd {
namespace {

// The kernel takes one type for everything, so gradients of another type than the master copies are
// cast; this many elements at a time.
constexpr int64_t kPartElements = 1 << 20;

class AdamW final : public Optimizer {
 public:
  AdamW(const YokeOptimizer& config, const ShardState& state)
      : config_(config), grads_(state.grads) {
    moments_ = {{"exp_avg", at::zeros_like(state.params)},
                {"exp_avg_sq", at::zeros_like(state.params)}};
    fp32_step_ = at::zeros({}, state.params.options().dtype(at::kFloat));
    for (const ShardState::Range& range : state.ranges) {
      for (int64_t done = 0; done < range.count; done += kPartElements) {
        const auto part = [&](const at::Tensor& flat) {
          return flat.narrow(0, range.begin + done, std::min(kPartElements, range.count - done));
        };
        parts_.push_back({part(state.params),
                          part(state.grads),
                          part(moments_[0].values),
                          part(moments_[1].values),
                          range.decay ? config.weight_decay : 0});
      }
    }
  }

 private:
  struct Part {
    at::Tensor params, grads, exp_avgs, exp_avg_sqs;
    double weight_decay;
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
    for (const Part& part : parts_) update(part, lr, divisor);
  }

  void update(const Part& part, double lr, const std::optional<at::Tensor>& divisor) const {
    at::_fused_adamw_({part.params},
                      {part.grads.to(part.params.scalar_type())},
                      {part.exp_avgs},
                      {part.exp_avg_sqs},
                      {},
                      {fp32_step_},
                      lr,
                      config_.beta1,
                      config_.beta2,
                      part.weight_decay,
                      config_.eps,
                      /*amsgrad=*/false,
                      /*maximize=*/false,
                      divisor);
  }

  const YokeOptimizer config_;
  at::Tensor grads_;
  at::Tensor fp32_step_;  // a scalar, as the kernel wants it: exact up to 16 million steps
  std::vector<Part> parts_;
};

}  // namespace

std::unique_ptr<Optimizer> make_adamw(const YokeOptimizer& config, const ShardState& state) {
  return std::make_unique<AdamW>(config, state);
}

}  // namespace yoke::ptd
