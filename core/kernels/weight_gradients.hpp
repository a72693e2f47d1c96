// Where the gradients of weights go: to .grad, to a queue for later, or to sums of the backend.
#pragma once

#include <ATen/core/Tensor.h>

#include <utility>

#include "yoke/torch.hpp"

namespace yoke::ops::fused {

// Returns dy [N, out]^T x [N, in]. The tensors may be distributed.
at::Tensor weight_gradient(const at::Tensor& dy, const at::Tensor& x);

// Returns the queue that defer_weights() has set for this thread, or NULL.
WeightQueue* deferred_weights();

// Returns the sum of the gradients of a weight that the backend keeps, or NULL if the gradient is
// to be left in .grad; see add_gradients_to(). The weight may be a distributed tensor.
GradientSums::Sum* sum_of(const at::Tensor& weight);

// Returns gradient(), the gradient of a weight. With a queue, pushes it there instead and returns
// an undefined tensor.
template <class F>
at::Tensor now_or_later(const at::Tensor& weight, F gradient) {
  WeightQueue* const queue = deferred_weights();
  if (queue == nullptr) return gradient();
  queue->push(weight, std::move(gradient));
  return {};
}

}  // namespace yoke::ops::fused
