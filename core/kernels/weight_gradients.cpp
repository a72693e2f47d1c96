#include "core/kernels/weight_gradients.hpp"

#include <ATen/ATen.h>

#include <memory>
#include <utility>

#include "core/cuda/device_runtime.hpp"
#include "core/kernels/fused_ops.hpp"
#include "core/kernels/neighbours.hpp"
#include "core/kernels/products.hpp"

namespace yoke::ops::fused {
namespace {

thread_local WeightQueue* deferred = nullptr;
thread_local GradientSums* sums = nullptr;

// Adds a^T b, the gradient of one weight or of neighbouring ones, to the sums that the backend
// keeps, and returns true. Returns false if that would not save a pass over memory, or if there are
// no such sums that are neighbours, too.
bool add_to_sums(at::TensorList weights, const at::Tensor& a, const at::Tensor& b) {
  if (!a.has_storage()) return false;
  std::vector<GradientSums::Sum*> sums;
  std::vector<at::Tensor> parts;
  for (const at::Tensor& weight : weights) {
    GradientSums::Sum* const sum = sum_of(weight);
    if (sum == nullptr || (!sums.empty() && sum->written != sums[0]->written)) return false;
    sums.push_back(sum);
    parts.push_back(sum->values.view({-1, b.size(1)}));
  }
  if (!are_stacked(parts)) return false;
  const at::Tensor values = stacked(parts);
  const at::ScalarType type = a.scalar_type(), sum_type = values.scalar_type();
  const bool written = sums[0]->written;
  if (runs_on(a.device())) {
    if (sum_type != type && !(sum_type == at::kFloat && a.element_size() == 2)) return false;
    cuda_runtime().multiply(values, a.t(), b, written ? values : at::Tensor());
  } else {
    if (sum_type != type || written || !has_fast_products(type)) return false;
    multiply(values, a.t(), b);
  }
  for (GradientSums::Sum* sum : sums) sum->written = true;
  return true;
}

// The gradients of neighbouring weights [out_i, in], computed by one product when the first of them
// is needed. dy: gradients [..., out_i] that are side by side. x: [N, in].
class JointGradients {
 public:
  JointGradients(at::TensorList weights, at::TensorList dy, const at::Tensor& x)
      : weights_(weights.vec()), dy_(dy.vec()), x_(x) {}

  // Returns the gradient of weight i, or an undefined tensor if it has been added to a sum. Call it
  // once for each weight.
  at::Tensor take(size_t i) {
    if (!dy_.empty()) compute();
    return std::move(gradients_[i]);
  }

 private:
  void compute() {
    gradients_.resize(weights_.size());
    const at::Tensor dy = rows_of(side_by_side(dy_));
    if (!add_to_sums(weights_, dy, x_)) compute_for_other_sums(dy);
    dy_.clear();  // owns the memory of `dy`
    x_.reset();
  }

  // On a device, sums that are no neighbours get a product each, because gradients of 16 bits would
  // be rounded before they are added to wider sums.
  void compute_for_other_sums(const at::Tensor& dy) {
    at::Tensor all;
    int64_t begin = 0;
    for (size_t i = 0; i < weights_.size(); begin += weights_[i++].size(0)) {
      if (runs_on(dy.device()) && add_to_sums(weights_[i], rows_of(dy_[i]), x_)) continue;
      if (!all.defined()) all = weight_gradient(dy, x_);
      gradients_[i] = all.narrow(0, begin, weights_[i].size(0));
    }
  }

  std::vector<at::Tensor> weights_, dy_;
  at::Tensor x_;
  std::vector<at::Tensor> gradients_;
};

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

at::Tensor weight_gradient(const at::Tensor& dy, const at::Tensor& x) {
  if (!dy.has_storage()) return at::mm(dy.t(), x);
  at::Tensor out = at::empty({dy.size(1), x.size(1)}, x.options());
  multiply(out, dy.t(), x);
  return out;
}

at::Tensor gradient_of(const at::Tensor& weight,
                       const at::Tensor& dy,
                       const at::Tensor& x,
                       bool input_first) {
  const at::Tensor &a = input_first ? x : dy, &b = input_first ? dy : x;
  return now_or_later(weight, [weight, a, b] {
    if (add_to_sums(weight, a, b)) return at::Tensor();
    const at::Tensor gradient = weight_gradient(a, b);
    return weight.dim() == 2 ? gradient : gradient.view(weight.sizes());
  });
}

std::vector<at::Tensor> gradients_of(at::TensorList weights,
                                     at::TensorList dy,
                                     const at::Tensor& x) {
  const auto joint = std::make_shared<JointGradients>(weights, dy, x);
  std::vector<at::Tensor> gradients;
  for (size_t i = 0; i < weights.size(); ++i)
    gradients.push_back(now_or_later(weights[i], [joint, i] { return joint->take(i); }));
  return gradients;
}

}  // namespace yoke::ops::fused
