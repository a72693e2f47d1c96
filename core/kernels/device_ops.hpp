// Operators of core/kernels/ops.hpp for CUDA tensors. They are autograd nodes that keep less memory
// and read it less often than the composition of ATen operators. Called by ops.cpp only. Those that
// are composed of ATen operators run on any device, so that they can be tested without a GPU.
#pragma once

#include <ATen/core/Tensor.h>

#include <initializer_list>

namespace yoke::ops::device {

// Returns true for plain tensors in device memory. A wrapper, e.g. a sharded tensor, has no storage
// of its own and must intercept every ATen operator.
bool takes(std::initializer_list<const at::Tensor*> tensors);

// x is fp32 or bf16, the angles are fp32. Runs the kernel of core/cuda/rotary.hpp. Saves only the
// angles for the backward.
at::Tensor rotary(const at::Tensor& x, const at::Tensor& cos, const at::Tensor& sin);
// Saves gate and up for the backward, but not silu(gate), which is computed again.
at::Tensor swiglu(const at::Tensor& gate, const at::Tensor& up);
// Processes a few rows at a time, so that no temporary has more than `most` elements, or one row if
// that is larger. Saves the logits for the backward, which overwrites them with their gradient. A
// target out of range fails an assertion on the device.
at::Tensor cross_entropy_sum(const at::Tensor& logits,
                             const at::Tensor& targets,
                             int64_t most = 1 << 23);

}  // namespace yoke::ops::device
