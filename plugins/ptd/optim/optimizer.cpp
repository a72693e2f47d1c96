#include "plugins/ptd/optim/optimizer.hpp"

#include <ATen/ATen.h>

#include <string>

namespace yoke::ptd {

Optimizer::Optimizer(const ShardState& state)
    : fp32_step_(at::zeros({}, state.params.options().dtype(at::kFloat))),
      fp32_lr_(at::zeros_like(fp32_step_)) {}

void Optimizer::begin_step(int64_t step, double lr) {
  step_ = step;
  lr_ = lr;
  fp32_step_.fill_(step);
  fp32_lr_.fill_(lr);
}

std::unique_ptr<Optimizer> make_optimizer(const YokeOptimizer& config, const ShardState& state) {
  switch (config.kind) {
    case YOKE_ADAMW:
      return make_adamw(config, state);
    case YOKE_SGD:
      return make_sgd(config, state);
    default:
      throw Error(YOKE_INVALID_ARGUMENT,
                  "ptd has no optimizer of kind " + std::to_string(config.kind) +
                      "; it has YOKE_SGD (1) and YOKE_ADAMW (2)");
  }
}

}  // namespace yoke::ptd
