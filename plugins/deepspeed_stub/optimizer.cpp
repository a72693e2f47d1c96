// Dispatches the update of a slice to the kernel of its dtypes, in at most two parts: the elements
// with weight decay, and those without.
#include "plugins/deepspeed_stub/optimizer.hpp"

#include <algorithm>

#include "yoke/error.hpp"
#include "yoke/text.hpp"

namespace yoke::deepspeed_stub {
namespace {

template <class Master, class Gradient, class Copy>
AdamWArrays<Master, Gradient, Copy> arrays(const Span& param,
                                           const Span& exp_avg,
                                           const Span& exp_avg_sq,
                                           const Span& gradient,
                                           const Span& copy) {
  return {static_cast<Master*>(param.data),
          static_cast<Master*>(exp_avg.data),
          static_cast<Master*>(exp_avg_sq.data),
          static_cast<const Gradient*>(gradient.data),
          static_cast<Copy*>(copy.data)};
}

}  // namespace

Optimizer::Optimizer(const YokeOptimizer& config, const Setup& setup, const Store& store)
    : config_(config),
      device_(setup.device),
      store_(store),
      exp_avg_(device_, store.owned.size, store.master.dtype),
      exp_avg_sq_(device_, store.owned.size, store.master.dtype) {}

void Optimizer::begin_step(int64_t step, double lr) {
  step_ = step;
  lr_ = lr;
}

void Optimizer::update(const Span& gradient,
                       int64_t begin,
                       int64_t count,
                       const StepTotals* totals) const {
  const int64_t end = begin + count;
  const int64_t decay_end = std::clamp(store_.owned.decay_end, begin, end);
  run(gradient, {begin, decay_end - begin, config_.weight_decay}, totals);
  run(gradient, {decay_end, end - decay_end, 0}, totals);
}

void Optimizer::run(const Span& gradient, const Part& part, const StepTotals* totals) const {
  const auto [begin, count, decay] = part;
  if (count == 0) return;
  const AdamWStep step{lr_, config_.beta1, config_.beta2, config_.eps, decay, step_};
  const Span param = store_.master.sub(begin, count), g = gradient.sub(begin, count);
  const Span m = exp_avg_.sub(begin, count), v = exp_avg_sq_.sub(begin, count);
  const Span copy = store_.copy.data == nullptr ? Span() : store_.copy.sub(begin, count);
  const auto launch = [&]<class Master, class Gradient, class Copy>(
                          AdamWKernel<Master, Gradient, Copy> kernel) {
    kernel(
        device_.queue(), count, step, arrays<Master, Gradient, Copy>(param, m, v, g, copy), totals);
  };
  const Kernels& k = device_.kernels();
  const bool to_fp16 = copy.data != nullptr && copy.dtype == YOKE_F16;
  if (param.dtype == YOKE_F64 && g.dtype == YOKE_F64) return launch(k.adamw_fp64);
  if (param.dtype == YOKE_F32 && g.dtype == YOKE_F32)
    return to_fp16 ? launch(k.adamw_fp32_to_fp16) : launch(k.adamw_fp32);
  if (param.dtype == YOKE_F32 && g.dtype == YOKE_F16 && to_fp16) return launch(k.adamw_fp16);
  if (param.dtype == YOKE_F32 && g.dtype == YOKE_BF16) return launch(k.adamw_bf16);
  throw Error(YOKE_INTERNAL,
              concat("AdamW has no kernel for ",
                     dtype_name(param.dtype),
                     " weights with ",
                     dtype_name(g.dtype),
                     " gradients"));
}

}  // namespace yoke::deepspeed_stub
