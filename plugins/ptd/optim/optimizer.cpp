#include "plugins/ptd/optim/optimizer.hpp"

#include <ATen/ATen.h>

#include <string>
#include <utility>

#include "yoke/optimizer.h"
#include "yoke/optimizer_name.hpp"

namespace yoke::ptd {

Moment::Moment(const char* its_kind, const at::Tensor& params)
    : Moment(its_kind, params, {{0, params.numel()}}) {}

Moment::Moment(const char* its_kind, const at::Tensor& params, std::vector<FlatRange> its_ranges)
    : kind(its_kind), ranges(std::move(its_ranges)) {
  int64_t count = 0;
  for (const FlatRange& range : ranges) count += range.count;
  values = at::zeros({count}, params.options());
}

at::Tensor Moment::of(int64_t begin, int64_t count) const {
  int64_t before = 0;
  for (const FlatRange& range : ranges) {
    if (begin >= range.begin && begin < range.begin + range.count)
      return values.narrow(0, before + begin - range.begin, count);
    before += range.count;
  }
  return {};
}

Optimizer::Optimizer(const ShardState& state)
    : fp32_step_(at::zeros({}, state.params.options().dtype(at::kFloat))),
      fp32_lr_(at::zeros_like(fp32_step_)) {}

void Optimizer::begin_step(int64_t step, double lr) {
  step_ = step;
  lr_ = lr;
  if (!fp32_step_.defined()) return;
  fp32_step_.fill_(step);
  fp32_lr_.fill_(lr);
}

std::unique_ptr<Optimizer> make_optimizer(const YokeOptimizer& config,
                                          const ShardState& state,
                                          const ModelSpec& model,
                                          const Comm& unshard,
                                          const TorchKernels* kernels) {
  if (uses_device_adamw(config, state.dtypes, kernels))
    return make_device_adamw(config, state, state.spans, *kernels);
  if (yoke_is_adam(config.kind)) return make_adamw(config, state, state.spans);
  if (yoke_is_lion(config.kind)) return make_lion(config, state);
  if (yoke_is_muon(config.kind)) return make_muon(config, state, model, unshard);
  if (config.kind == YOKE_SGD) return make_sgd(config, state);
  throw Error(YOKE_INVALID_ARGUMENT,
              "ptd does not have the optimizer " + optimizer_name(config.kind) +
                  "; it has adamw, adam, lion, muon and sgd");
}

bool uses_device_adamw(const YokeOptimizer& config,
                       const Dtypes& dtypes,
                       const TorchKernels* kernels) {
  return yoke_is_adam(config.kind) && kernels != nullptr &&
         takes_adamw(dtypes.master, dtypes.reduce, dtypes.reduce);
}

int64_t elements_at_a_time(const at::Tensor& params) {
  return params.is_cpu() ? 1 << 20 : 1 << 26;
}

}  // namespace yoke::ptd
