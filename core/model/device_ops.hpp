// Operators of core/model/ops.hpp for CUDA tensors: ATen's kernels in autograd nodes that keep less
// than its composition would. Called by ops.cpp; they run on any device, so that tests need none.
#pragma once

#include <ATen/core/Tensor.h>

#include <initializer_list>

namespace yoke::ops::device {

// Plain tensors in device memory. A wrapper (a sharded tensor, say) has no storage of its own, and
// must see every single operator.
bool takes(std::initializer_list<const at::Tensor*> tensors);

// Keeps gate and up, not their product's factor.
at::Tensor swiglu(const at::Tensor& gate, const at::Tensor& up);
// Some rows at a time, so that there is never a softmax of more than `most` elements (or one row).
// Keeps the logits, whose memory becomes that of their gradient; a target out of range is an
// assertion of the device.
at::Tensor cross_entropy_sum(const at::Tensor& logits,
                             const at::Tensor& targets,
                             int64_t most = 1 << 25);

}  // namespace yoke::ops::device
