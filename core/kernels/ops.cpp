// Chooses the implementation of each operator: a kernel on the device, a fused kernel on the CPU,
// or the composition of ATen operators. takes() decides by the kind of the tensors, never by their
// values, so that the choice costs nothing and is the same on all ranks.
#include "core/kernels/ops.hpp"

#include <ATen/ATen.h>

#include <map>

#include "core/kernels/device_ops.hpp"
#include "core/kernels/fp8.hpp"
#include "core/kernels/fused_ops.hpp"

namespace yoke::ops {
namespace composite {

// x is flattened once, so that a sharded x that must be gathered is gathered once for all products.
// A tensor without storage is distributed. Among the operators of this namespace, only products of
// such tensors can defer their weight gradients.
std::vector<at::Tensor> linears(const at::Tensor& x, const std::vector<at::Tensor>& weights) {
  const at::Tensor rows = x.flatten(0, -2);
  std::vector<int64_t> sizes = x.sizes().vec();
  std::vector<at::Tensor> out;
  for (const at::Tensor& weight : weights) {
    sizes.back() = weight.size(0);
    const at::Tensor product =
        x.has_storage() ? at::mm(rows, weight.t()) : fused::product_of_rows(rows, weight);
    out.push_back(product.view(sizes));
  }
  return out;
}

at::Tensor linear_add(const at::Tensor& residual, const at::Tensor& x, const at::Tensor& weight) {
  return residual + (x.has_storage() ? at::linear(x, weight) : linears(x, {weight})[0]);
}

at::Tensor embedding(const at::Tensor& weight, const at::Tensor& ids) {
  return at::embedding(weight, ids);
}

at::Tensor rms_norm(const at::Tensor& x, const at::Tensor& weight, double eps) {
  return at::rms_norm(x, weight.sizes(), weight, eps);
}

at::Tensor rotary(const at::Tensor& x, const at::Tensor& cos, const at::Tensor& sin) {
  const auto half = x.chunk(2, -1);
  const at::Tensor c = cos.unsqueeze(2), s = sin.unsqueeze(2);
  return at::cat({half[0] * c - half[1] * s, half[1] * c + half[0] * s}, -1).to(x.scalar_type());
}

at::Tensor swiglu(const at::Tensor& gate, const at::Tensor& up) {
  return at::silu(gate) * up;
}

at::Tensor cross_entropy_sum(const at::Tensor& logits, const at::Tensor& targets) {
  const bool low = logits.scalar_type() == at::kBFloat16 || logits.scalar_type() == at::kHalf;
  const at::Tensor rows = (low ? logits.to(at::kFloat) : logits).flatten(0, -2);
  return at::cross_entropy_loss(rows, targets.flatten(), {}, at::Reduction::Sum, kIgnoredTarget);
}

at::Tensor causal_attention(const at::Tensor& q, const at::Tensor& k, const at::Tensor& v) {
  const int64_t groups = q.size(2) / k.size(2);
  const bool half = q.scalar_type() == at::kBFloat16 || q.scalar_type() == at::kHalf;
  // On CUDA only the kernels for 16-bit types support grouped heads. For the others ATen would fall
  // back to an implementation that stores all S x S scores, so the heads are repeated instead.
  if (q.is_cuda() && q.has_storage() && groups > 1 && !half)
    return causal_attention(q, k.repeat_interleave(groups, 2), v.repeat_interleave(groups, 2));
  const at::Tensor out = at::scaled_dot_product_attention(q.transpose(1, 2),
                                                          k.transpose(1, 2),
                                                          v.transpose(1, 2),
                                                          {},
                                                          0.0,
                                                          /*is_causal=*/true,
                                                          std::nullopt,
                                                          /*enable_gqa=*/q.size(2) != k.size(2));
  return out.transpose(1, 2).flatten(2);
}

}  // namespace composite

WeightQueue* defer_weights(WeightQueue* queue) {
  return fused::defer_weights(queue);
}

namespace {

std::vector<at::Tensor> linears_of(Product product,
                                   const at::Tensor& x,
                                   const std::vector<at::Tensor>& weights) {
  if (product != Product::kPlain) return fp8::linears(x, weights, product);
  for (const at::Tensor& weight : weights) {
    if (!fused::takes({&x, &weight})) return composite::linears(x, weights);
  }
  return fused::linears(x, weights);
}

}  // namespace

std::vector<at::Tensor> linears(const at::Tensor& x, const std::vector<Matrix>& matrices) {
  std::map<Product, std::vector<at::Tensor>> weights, done;
  for (const Matrix& m : matrices) weights[m.product].push_back(m.weight);
  for (const auto& [product, group] : weights) done[product] = linears_of(product, x, group);
  std::map<Product, size_t> next;
  std::vector<at::Tensor> out;
  for (const Matrix& m : matrices) out.push_back(done[m.product][next[m.product]++]);
  return out;
}

at::Tensor linear_add(const at::Tensor& residual, const at::Tensor& x, const Matrix& matrix) {
  const auto& [weight, product] = matrix;
  if (product != Product::kPlain) return residual + fp8::linears(x, {weight}, product)[0];
  return fused::takes({&residual, &x, &weight}) ? fused::linear_add(residual, x, weight)
                                                : composite::linear_add(residual, x, weight);
}

// On the CPU ATen adds up the gradient in the type of the weight. A sum of equal terms in bf16
// stops growing at 256 times the term, so there is a separate node for bf16.
at::Tensor embedding(const at::Tensor& weight, const at::Tensor& ids) {
  return weight.scalar_type() == at::kBFloat16 && fused::takes({&weight})
             ? fused::embedding(weight, ids)
             : composite::embedding(weight, ids);
}

at::Tensor rms_norm(const at::Tensor& x, const at::Tensor& weight, double eps) {
  return fused::takes({&x, &weight}) ? fused::rms_norm(x, weight, eps)
                                     : composite::rms_norm(x, weight, eps);
}

at::Tensor rotary(const at::Tensor& x, const at::Tensor& cos, const at::Tensor& sin) {
  if (device::takes({&x, &cos, &sin}) && cos.scalar_type() == at::kFloat)
    return device::rotary(x, cos, sin);
  return fused::takes({&x}) && fused::takes({&cos, &sin}) ? fused::rotary(x, cos, sin)
                                                          : composite::rotary(x, cos, sin);
}

at::Tensor swiglu(const at::Tensor& gate, const at::Tensor& up) {
  if (device::takes({&gate, &up})) return device::swiglu(gate, up);
  return fused::takes({&gate, &up}) ? fused::swiglu(gate, up) : composite::swiglu(gate, up);
}

at::Tensor causal_attention(const at::Tensor& q, const at::Tensor& k, const at::Tensor& v) {
  return q.size(1) <= fused::kLongestAttention && fused::takes({&q, &k, &v})
             ? fused::causal_attention(q, k, v)
             : composite::causal_attention(q, k, v);
}

at::Tensor cross_entropy_sum(const at::Tensor& logits, const at::Tensor& targets) {
  if (device::takes({&logits, &targets})) return device::cross_entropy_sum(logits, targets);
  return fused::takes({&logits}) && targets.is_cpu() && targets.has_storage()
             ? fused::cross_entropy_sum(logits, targets)
             : composite::cross_entropy_sum(logits, targets);
}

double count_targets(const at::Tensor& targets) {
  return static_cast<double>(targets.ne(kIgnoredTarget).sum().item<int64_t>());
}

}  // namespace yoke::ops
