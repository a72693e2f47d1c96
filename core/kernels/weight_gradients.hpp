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

// Returns the gradient of a weight [out, in], or [in, out] if input_first is true, whose dims may
// be several as in ops::Matrix. Adds it to the sum of the weight or leaves it to the queue, and
// then returns an undefined tensor. dy [N, out] and x [N, in] are dense. A gradient that comes from
// the queue is added to the sum as well, so that it is rounded in the same way.
at::Tensor gradient_of(const at::Tensor& weight,
                       const at::Tensor& dy,
                       const at::Tensor& x,
                       bool input_first);

// Does the same for neighbouring weights [out_i, in] with one product. dy: gradients [..., out_i]
// that are side by side. x: [N, in].
std::vector<at::Tensor> gradients_of(at::TensorList weights,
                                     at::TensorList dy,
                                     const at::Tensor& x);

}  // namespace yoke::ops::fused
