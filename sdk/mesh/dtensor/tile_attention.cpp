// A kernel can be used for a tile if it returns the log-sum-exp of each query and accepts one in
// the backward. On the CPU, LibTorch has one for all types and masks. On CUDA, its flash attention
// is such a kernel, for 16-bit types without a mask; every other tile is composed of products.
#include "sdk/mesh/dtensor/tile_attention.hpp"

#include <ATen/ATen.h>

#include <cmath>

namespace yoke::mesh {
namespace {

bool has_flash_kernel(const TileAttention& tile, const at::Tensor& q, const at::Tensor& v) {
  const bool half = q.scalar_type() == at::kBFloat16 || q.scalar_type() == at::kHalf;
  const int64_t head = q.size(-1);
  return q.is_cuda() && half && !tile.mask && head % 8 == 0 && head <= 256 && v.size(-1) == head;
}

// Returns keys or values for each query head, in the accumulation type.
at::Tensor for_heads(const at::Tensor& t, int64_t heads) {
  return t.to(accumulation_type(t)).repeat_interleave(heads / t.size(1), 1);
}

// Adds up gradients of query heads with the same key head.
at::Tensor of_key_heads(const at::Tensor& grad, const at::Tensor& keys) {
  return grad.unflatten(1, {keys.size(1), -1}).sum(2).to(keys.scalar_type());
}

double scale_of(const TileAttention& tile, const at::Tensor& q) {
  return tile.scale.value_or(1 / std::sqrt(static_cast<double>(q.size(-1))));
}

}  // namespace

at::ScalarType accumulation_type(const at::Tensor& t) {
  return t.scalar_type() == at::kDouble ? at::kDouble : at::kFloat;
}

TileAttention::Result TileAttention::forward(const at::Tensor& q,
                                             const at::Tensor& k,
                                             const at::Tensor& v) const {
  if (q.is_cpu()) {
    auto [out, lse] =
        at::_scaled_dot_product_flash_attention_for_cpu(q, k, v, 0.0, causal, mask, scale);
    return {out, lse};
  }
  if (!has_flash_kernel(*this, q, v)) return composed_forward(q, k, v);
  const auto result = at::_scaled_dot_product_flash_attention(q, k, v, 0.0, causal, false, scale);
  return {std::get<0>(result), std::get<1>(result)};
}

TileAttention::Gradients TileAttention::backward(const at::Tensor& grad,
                                                 const at::Tensor& q,
                                                 const at::Tensor& k,
                                                 const at::Tensor& v,
                                                 const Result& result) const {
  const auto& [out, lse] = result;
  if (q.is_cpu()) {
    const auto [dq, dk, dv] = at::_scaled_dot_product_flash_attention_for_cpu_backward(
        grad, q, k, v, out, lse, 0.0, causal, mask, scale);
    return {dq, dk, dv};
  }
  if (!has_flash_kernel(*this, q, v)) return composed_backward(grad, q, k, v, result);
  // The tensors that are not defined are for sequences of several lengths, and for dropout.
  const at::Tensor none, seed = at::empty({2}, q.options().dtype(at::kLong));
  const auto [dq, dk, dv] = at::_scaled_dot_product_flash_attention_backward(
      grad, q, k, v, out, lse, none, none, q.size(2), k.size(2), 0.0, causal, seed, seed, scale);
  return {dq, dk, dv};
}

at::Tensor TileAttention::scores(const at::Tensor& q, const at::Tensor& k) const {
  at::Tensor s =
      (q.to(accumulation_type(q)) * scale_of(*this, q)).matmul(for_heads(k, q.size(1)).mT());
  if (mask) s += *mask;
  if (causal)
    s.masked_fill_(at::ones({s.size(-2), s.size(-1)}, s.options().dtype(at::kBool)).triu_(1),
                   -INFINITY);
  return s;
}

TileAttention::Result TileAttention::composed_forward(const at::Tensor& q,
                                                      const at::Tensor& k,
                                                      const at::Tensor& v) const {
  const at::Tensor s = scores(q, k), lse = s.logsumexp(-1);
  const at::Tensor finite = lse.masked_fill(lse.eq(-INFINITY), 0);
  const at::Tensor weights = (s - finite.unsqueeze(-1)).exp_();
  return {weights.matmul(for_heads(v, q.size(1))).to(q.scalar_type()), lse};
}

TileAttention::Gradients TileAttention::composed_backward(const at::Tensor& grad,
                                                          const at::Tensor& q,
                                                          const at::Tensor& k,
                                                          const at::Tensor& v,
                                                          const Result& result) const {
  const at::Tensor dout = grad.to(accumulation_type(q));
  const at::Tensor weights = (scores(q, k) - result.lse.unsqueeze(-1)).exp_();
  const at::Tensor sum = (dout * result.out.to(accumulation_type(q))).sum(-1, true);
  const at::Tensor ds = (dout.matmul(for_heads(v, q.size(1)).mT()) - sum).mul_(weights);
  const double factor = scale_of(*this, q);
  return {ds.matmul(for_heads(k, q.size(1))).mul_(factor).to(q.scalar_type()),
          of_key_heads(ds.mT().matmul(q.to(accumulation_type(q))).mul_(factor), k),
          of_key_heads(weights.mT().matmul(dout), v)};
}

}  // namespace yoke::mesh
