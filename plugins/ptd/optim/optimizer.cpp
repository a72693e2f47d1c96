#include "plugins/ptd/optim/optimizer.hpp"

#include <ATen/ATen.h>

#include <string>

#include "yoke/optimizer.h"
#include "yoke/optimizer_name.hpp"

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
  if (yoke_is_adam(config.kind)) return make_adamw(config, state);
  if (yoke_is_lion(config.kind)) return make_lion(config, state);
  if (config.kind == YOKE_SGD) return make_sgd(config, state);
  throw Error(YOKE_INVALID_ARGUMENT,
              "ptd does not have the optimizer " + optimizer_name(config.kind) +
                  "; it has adamw, adam, lion and sgd");
}

int64_t elements_at_a_time(const at::Tensor& params) {
  return params.is_cpu() ? 1 << 20 : 1 << 26;
}

}  // namespace yoke::ptd
