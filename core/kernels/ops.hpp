// The operators of a transformer block. Each takes a fused kernel where it can (plain tensors in
// CPU memory), on a device what ATen has fused, and a composition of ATen operators everywhere
// else: wrapped tensors without storage, odd layouts. All are differentiable once; both ways give
// the same values up to rounding.
#pragma once

#include <ATen/core/Tensor.h>

#include <vector>

namespace yoke::ops {

// x [..., in] times every weight [out, in], transposed: [..., out] each. The gradient of x is
// summed up in one buffer.
std::vector<at::Tensor> linears(const at::Tensor& x, const std::vector<at::Tensor>& weights);

// residual + x times weight, transposed.
at::Tensor linear_add(const at::Tensor& residual, const at::Tensor& x, const at::Tensor& weight);

// Rows of weight [V, D] by ids [...]: [..., D]. The gradient of a row that is used several times is
// added up in fp32 or better.
at::Tensor embedding(const at::Tensor& weight, const at::Tensor& ids);

// x / sqrt(mean(x^2) + eps) * weight over the last dim; the mean in fp32 or better.
at::Tensor rms_norm(const at::Tensor& x, const at::Tensor& weight, double eps);

// Rotates x [B, S, heads, D] by angles whose cos and sin are [B, S, D/2], in fp32 or better:
// element i of the first half of a head pairs with element i of the second ("rotate half").
at::Tensor rotary(const at::Tensor& x, const at::Tensor& cos, const at::Tensor& sin);

// silu(gate) * up.
at::Tensor swiglu(const at::Tensor& gate, const at::Tensor& up);

// Causal attention: q [B, S, heads, D], k and v [B, S, kv_heads, D]; gives [B, S, heads * D].
at::Tensor causal_attention(const at::Tensor& q, const at::Tensor& k, const at::Tensor& v);

// Sum of -log softmax(logits)[target] over the targets that are not -100; softmax in fp32 or
// better. logits [..., V], whose backward may use their memory, targets [...] int64; a scalar of
// fp32 or better. Throws, on the CPU, Error(INVALID_ARGUMENT) for other targets outside [0, V).
at::Tensor cross_entropy_sum(const at::Tensor& logits, const at::Tensor& targets);

inline constexpr int64_t kIgnoredTarget = -100;
// How many targets count.
double count_targets(const at::Tensor& targets);

// The composition of ATen operators behind each; the oracle of the fused kernels.
namespace composite {
std::vector<at::Tensor> linears(const at::Tensor& x, const std::vector<at::Tensor>& weights);
at::Tensor linear_add(const at::Tensor& residual, const at::Tensor& x, const at::Tensor& weight);
at::Tensor embedding(const at::Tensor& weight, const at::Tensor& ids);
at::Tensor rms_norm(const at::Tensor& x, const at::Tensor& weight, double eps);
at::Tensor rotary(const at::Tensor& x, const at::Tensor& cos, const at::Tensor& sin);
at::Tensor swiglu(const at::Tensor& gate, const at::Tensor& up);
at::Tensor causal_attention(const at::Tensor& q, const at::Tensor& k, const at::Tensor& v);
at::Tensor cross_entropy_sum(const at::Tensor& logits, const at::Tensor& targets);
}  // namespace composite

}  // namespace yoke::ops
