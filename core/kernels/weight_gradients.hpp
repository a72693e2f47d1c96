// Where the gradients of weights go: to .grad, to a queue for later, or to sums of the backend.
#pragma once

#include <ATen/core/Tensor.h>

#include <utility>
#include <vector>

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

// Returns the gradient of a weight [out, in], or of [in, out] if input_first is true; the outputs
// may have several dims, see ops::Matrix. If a queue is set, the gradient is computed when the
// queue runs. If the backend keeps a sum that takes it, it is added to that sum, also when it comes
// from the queue, so that it is rounded in the same way. In both cases the result is undefined.
// dy is [N, out], x is [N, in]. The tensors may be distributed.
at::Tensor gradient_of(const at::Tensor& weight,
                       const at::Tensor& dy,
                       const at::Tensor& x,
                       bool input_first);

// Does the same for weights [out_i, in] that are neighbours in memory, with one product. dy holds
// gradients [..., out_i] that are side by side. x is [N, in]. No tensor is distributed.
std::vector<at::Tensor> gradients_of(at::TensorList weights,
                                     at::TensorList dy,
                                     const at::Tensor& x);

}  // namespace yoke::ops::fused
