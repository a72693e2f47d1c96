// The operators of a transformer block. Each uses a fused implementation for plain tensors in CPU
// memory, and some have one for a device. In all other cases, e.g. for wrapped tensors without
// storage, an operator is a composition of ATen operators. All implementations are differentiable
// once and give the same values up to rounding.
//
// Wrong shapes and dtypes cause ATen's exceptions. Any thread.
#pragma once

#include <ATen/core/Tensor.h>

#include <vector>

#include "yoke/torch.hpp"

namespace yoke::ops {

// Implements TorchModel::defer_weights for linears() and linear_add().
WeightQueue* defer_weights(WeightQueue* queue);

// Implements TorchModel::add_gradients_to for linears(), linear_add() and norms.
GradientSums* add_gradients_to(GradientSums* sums);

// How the operands of products are rounded: not at all, or to fp8 by one of torchao's recipes
// (core/kernels/fp8.hpp). kTensorwise: one scale for each tensor. kRowwise: one for each row or
// column. kRowwiseGwHp: the same, but the gradients of weights are plain products.
enum class Product : uint8_t { kPlain, kTensorwise, kRowwise, kRowwiseGwHp };

// Two narrow matrices whose product is added to a weight [out, in]: scale * up down. Undefined =
// none. The products with them are plain. Their shapes do not depend on Matrix::input_first.
struct LowRank {
  at::Tensor down, up;  // [rank, in], [out, rank]
  double scale = 1;
};

// A weight [out, in], how to multiply by it, and a bias [out] that is added to the product;
// undefined = none. input_first: the weight is [in, out], as in a Conv1D of GPT-2; only for
// kPlain. With kPlain the outputs may have several dims: [in, a, b] or [a, b, in], with a bias [a,
// b], is a matrix with a * b outputs.
struct Matrix {
  Matrix(const at::Tensor& weight_tensor,
         Product how = Product::kPlain,
         const at::Tensor& bias_tensor = {},
         bool in_comes_first = false)
      : weight(weight_tensor), bias(bias_tensor), product(how), input_first(in_comes_first) {}
  at::Tensor weight, bias;
  Product product;
  bool input_first;
  LowRank adapter{};
  // Results with the same number are released at about the same time. If their weights are also
  // adjacent in memory, the results may share one buffer, which lives as long as any of them.
  int lifetime = 0;
};

// Returns x [..., in] times the transpose of each matrix [out, in], plus its bias: one tensor [...,
// out] for each. The gradient of x is summed up in one buffer for all matrices with the same
// product.
std::vector<at::Tensor> linears(const at::Tensor& x, const std::vector<Matrix>& matrices);

// Returns residual [..., out] + x [..., in] times the transpose of the matrix [out, in] + its bias.
at::Tensor linear_add(const at::Tensor& residual, const at::Tensor& x, const Matrix& matrix);

// Returns the rows of weight [V, D] that ids [...] select: [..., D]. The gradients of a row that is
// used several times are added up in fp32 or better.
at::Tensor embedding(const at::Tensor& weight, const at::Tensor& ids);

// Returns x / sqrt(mean(x^2) + eps) * weight over the last dim. The mean is computed in fp32 or
// better.
at::Tensor rms_norm(const at::Tensor& x, const at::Tensor& weight, double eps);

// The norm of a tensor, and the tensor itself for its other use.
struct Normed {
  at::Tensor norm, residual;
};
// Returns rms_norm(x) and x. In a transformer block, the output of a layer is added to the same x
// that its norm reads. If both come from this function, the gradients of the two uses can be added
// where the gradient of the norm is computed.
Normed norm_and_residual(const at::Tensor& x, const at::Tensor& weight, double eps);

// Returns (x - mean) / sqrt(variance + eps) * weight + bias over the last dim, the statistics in
// fp32 or better.
at::Tensor layer_norm(const at::Tensor& x,
                      const at::Tensor& weight,
                      const at::Tensor& bias,
                      double eps);

struct QueriesAndKeys {
  at::Tensor q, k;
};
// Rotates q [B, S, heads, D] and k [B, S, kv_heads, D] by the angles whose cosines and sines are
// [B, S, D/2], in fp32 or better. Element i of the first half of a head and element i of the second
// form a pair ("rotate half").
QueriesAndKeys rotary(const at::Tensor& q,
                      const at::Tensor& k,
                      const at::Tensor& cos,
                      const at::Tensor& sin);

// Returns silu(gate) * up.
at::Tensor swiglu(const at::Tensor& gate, const at::Tensor& up);

// Returns x Phi(x) with the normal distribution Phi, or its approximation by tanh.
at::Tensor gelu(const at::Tensor& x, bool by_tanh);

// The documents in sequences, for each token: the index in its sequence of the first token of its
// document, and its position in the document. Both are [B, S], int64. Undefined = each sequence is
// one document.
struct Documents {
  at::Tensor starts, positions;
};

// Causal attention of q [B, S, heads, D] to k and v [B, S, kv_heads, D]. Returns [B, S, heads * D].
// window: a token attends only to itself and the window - 1 tokens before it; 0 = to all before it.
// A token attends only to tokens of its document.
at::Tensor causal_attention(const at::Tensor& q,
                            const at::Tensor& k,
                            const at::Tensor& v,
                            int64_t window = 0,
                            const Documents& documents = {});

// Returns the sum of -log softmax(logits)[target] over the targets that are not kIgnoredTarget, as
// a scalar of fp32 or better; the softmax is computed in fp32 or better. logits are [..., V] and
// the backward may overwrite them; targets are [...], int64. On the CPU it throws
// Error(INVALID_ARGUMENT) for any other target outside [0, V).
at::Tensor cross_entropy_sum(const at::Tensor& logits, const at::Tensor& targets);

inline constexpr int64_t kIgnoredTarget = -100;
// Returns the number of targets that are not ignored: the target count of a loss.
double count_targets(const at::Tensor& targets);

// The same operators composed of ATen operators. The fused kernels are tested against them.
namespace composite {
std::vector<at::Tensor> linears(const at::Tensor& x,
                                const std::vector<at::Tensor>& weights,
                                bool input_first = false);
at::Tensor linear_add(const at::Tensor& residual,
                      const at::Tensor& x,
                      const at::Tensor& weight,
                      bool input_first = false);
at::Tensor embedding(const at::Tensor& weight, const at::Tensor& ids);
at::Tensor rms_norm(const at::Tensor& x, const at::Tensor& weight, double eps);
at::Tensor rotary(const at::Tensor& x, const at::Tensor& cos, const at::Tensor& sin);
at::Tensor swiglu(const at::Tensor& gate, const at::Tensor& up);
at::Tensor causal_attention(const at::Tensor& q,
                            const at::Tensor& k,
                            const at::Tensor& v,
                            int64_t window = 0,
                            const Documents& documents = {});
at::Tensor cross_entropy_sum(const at::Tensor& logits, const at::Tensor& targets);
}  // namespace composite

}  // namespace yoke::ops
