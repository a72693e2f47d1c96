// Products of matrices, as the operators of fused_ops.hpp need them. Any thread.
#pragma once

#include <ATen/core/Tensor.h>

#include <vector>

namespace yoke::ops::fused {

// Returns t [..., columns] as a matrix [rows, columns].
inline at::Tensor rows_of(const at::Tensor& t) {
  return t.view({-1, t.size(-1)});
}

// Returns an uninitialized tensor for a product. A device multiplies faster if rows begin at
// multiples of 16 bytes, which they do not in the logits of a model with, e.g., 50257 tokens. There
// the rows begin further apart. In a narrow result the gaps would cost too much memory. On the CPU,
// a tensor of 32 MiB or more may have the memory of an earlier one of the same size, of which each
// thread keeps one.
at::Tensor empty_product(const std::vector<int64_t>& sizes, const at::TensorOptions& options);

// Returns whether LibTorch computes products of this type fast. For bf16 it uses oneDNN, but
// without AVX-512 plain loops, which are up to thirty times slower than products in fp32. For fp16
// it uses plain loops on all but the newest processors.
bool has_fast_products(at::ScalarType type);

// Computes out [M, N] = a [M, K] b [K, N], plus `add` [M, N] or [N] if it is given. `add` may be
// `out`.
void multiply(at::Tensor out, const at::Tensor& a, const at::Tensor& b, const at::Tensor& add = {});

}  // namespace yoke::ops::fused
