// Dispatches the update of a slice to the kernel of its dtypes, in at most two parts: the elements
// with weight decay, and those without.
#include "plugins/deepspeed_stub/optimizer.hpp"

#include <algorithm>

#include "yoke/error.hpp"
#include "yoke/optimizer_name.hpp"
#include "yoke/text.hpp"

namespace yoke::deepspeed_stub {
namespace {

template <class Master, class Gradient, class Copy>
UpdateArrays<Master, Gradient, Copy> arrays(const Span& param,
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
    : config_(config), device_(setup.device), store_(store) {
  if (!yoke_is_adam(config.kind) && !yoke_is_lion(config.kind))
    throw Error(YOKE_INVALID_ARGUMENT,
                concat("deepspeed_stub does not have the optimizer ",
                       optimizer_name(config.kind),
                       "; it has adamw, adam and lion"));
  const char* kinds[2];
  const int count = yoke_moments(&config, kinds);
  for (int i = 0; i < count; ++i)
    moments_.push_back({kinds[i], Array(device_, store.owned.size, store.master.dtype)});
}

int64_t Optimizer::bytes() const {
  int64_t bytes = 0;
  for (const Moment& moment : moments_) bytes += moment.values.bytes();
  return bytes;
}

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
  run(gradient, {begin, decay_end - begin, true}, totals);
  run(gradient, {decay_end, end - decay_end, false}, totals);
}

void Optimizer::run(const Span& gradient, const Part& part, const StepTotals* totals) const {
  const auto [begin, count, decay] = part;
  if (count == 0) return;
  const YokeUpdate step = yoke_update_step(&config_, step_, lr_, decay ? 1 : 0);
  const Span param = store_.master.sub(begin, count), g = gradient.sub(begin, count);
  const Span m = moments_[0].values.sub(begin, count);
  const Span v = moments_.size() > 1 ? moments_[1].values.sub(begin, count) : Span();
  const Span copy = store_.copy.data == nullptr ? Span() : store_.copy.sub(begin, count);
  const auto launch = [&]<class Master, class Gradient, class Copy>(
                          UpdateKernel<Master, Gradient, Copy> kernel) {
    kernel(
        device_.queue(), count, step, arrays<Master, Gradient, Copy>(param, m, v, g, copy), totals);
  };
  const Kernels& k = device_.kernels();
  const bool to_fp16 = copy.data != nullptr && copy.dtype == YOKE_F16;
  if (param.dtype == YOKE_F64 && g.dtype == YOKE_F64) return launch(k.update_fp64);
  if (param.dtype == YOKE_F32 && g.dtype == YOKE_F32)
    return to_fp16 ? launch(k.update_fp32_to_fp16) : launch(k.update_fp32);
  if (param.dtype == YOKE_F32 && g.dtype == YOKE_F16 && to_fp16) return launch(k.update_fp16);
  if (param.dtype == YOKE_F32 && g.dtype == YOKE_BF16) return launch(k.update_bf16);
  throw Error(YOKE_INTERNAL,
              concat("the update has no kernel for ",
                     dtype_name(param.dtype),
                     " weights with ",
                     dtype_name(g.dtype),
                     " gradients"));
}

}  // namespace yoke::deepspeed_stub
