#include "core/kernels/weight_gradients.hpp"

#include "core/kernels/fused_ops.hpp"

namespace yoke::ops::fused {
namespace {

thread_local WeightQueue* deferred = nullptr;
thread_local GradientSums* sums = nullptr;

}  // namespace

WeightQueue* defer_weights(WeightQueue* queue) {
  return std::exchange(deferred, queue);
}

WeightQueue* deferred_weights() {
  return deferred;
}

GradientSums* add_gradients_to(GradientSums* next) {
  return std::exchange(sums, next);
}

GradientSums::Sum* sum_of(const at::Tensor& weight) {
  return sums != nullptr ? sums->of(weight) : nullptr;
}

}  // namespace yoke::ops::fused
