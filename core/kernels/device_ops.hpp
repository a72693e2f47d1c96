// Operators of core/kernels/ops.hpp for CUDA tensors, as autograd nodes that keep less and read
// memory less often than the composition of ATen's. Called by ops.cpp. Those made of ATen's kernels
// run on any device, so that tests need none.
#pragma once

#include <ATen/core/Tensor.h>

#include <initializer_list>

namespace yoke::ops::device {

// Plain tensors in device memory. A wrapper (a sharded tensor, say) has no storage of its own, and
// must see every single operator.
bool takes(std::initializer_list<const at::Tensor*> tensors);

// A kernel of our own; x fp32 or bf16. Keeps the angles.
at::Tensor rotary(const at::Tensor& x, const at::Tensor& cos, const at::Tensor& sin);
// Keeps gate and up, not their product's factor.
at::Tensor swiglu(const at::Tensor& gate, const at::Tensor& up);
// Some rows at a time, so that there is never a softmax of more than `most` elements (or one row).
// Keeps the logits, whose memory becomes that of their gradient; a target out of range is an
// assertion of the device.
at::Tensor cross_entropy_sum(const at::Tensor& logits,
                             const at::Tensor& targets,
                             int64_t most = 1 << 23);

}  // namespace yoke::ops::device
