// Operators of core/kernels/ops.hpp for CUDA tensors, computed by the kernels of core/cuda. They
// are autograd nodes that keep less memory and read it less often than the composition of ATen
// operators. Called by ops.cpp only. The tests run them on tensors in CPU memory, with a
// DeviceRuntime that emulates the kernels.
#pragma once

#include <ATen/core/Tensor.h>

#include <initializer_list>

#include "core/kernels/ops.hpp"

namespace yoke::ops::device {

// Returns true for plain tensors with which the device's runtime computes. A wrapper, e.g. a
// sharded tensor, has no storage of its own and must intercept every ATen operator.
bool takes(std::initializer_list<const at::Tensor*> tensors);

// Saves x, the weight and one number for each row for the backward.
Normed rms_norm(const at::Tensor& x, const at::Tensor& weight, double eps);
// Saves the logits for the backward, which overwrites them with their gradient. If a target is out
// of range, the result is NaN.
at::Tensor cross_entropy_sum(const at::Tensor& logits, const at::Tensor& targets);

}  // namespace yoke::ops::device
