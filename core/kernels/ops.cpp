// Chooses the implementation of each operator: a kernel on the device, a fused kernel on the CPU,
// or the composition of ATen operators. takes() decides by the kind of the tensors, never by their
// values, so that the choice costs nothing and is the same on all ranks.
#include "core/kernels/ops.hpp"

#include <ATen/ATen.h>

#include <algorithm>
#include <map>

#include "core/kernels/device_ops.hpp"
#include "core/kernels/fp8.hpp"
#include "core/kernels/fused_ops.hpp"

namespace yoke::ops {
namespace composite {

// x is flattened once, so that a sharded x that must be gathered is gathered once for all products.
// A tensor without storage is distributed. Among the operators of this namespace, only products of
// such tensors can defer their weight gradients.
std::vector<at::Tensor> linears(const at::Tensor& x,
                                const std::vector<at::Tensor>& weights,
                                bool input_first) {
  const at::Tensor rows = x.flatten(0, -2);
  std::vector<int64_t> sizes = x.sizes().vec();
  std::vector<at::Tensor> out;
  for (const at::Tensor& weight : weights) {
    const at::Tensor product =
        x.has_storage() ? at::mm(rows, input_first ? weight.flatten(1) : weight.flatten(0, -2).t())
                        : fused::product_of_rows(rows, weight, input_first);
    sizes.back() = product.size(1);
    out.push_back(product.view(sizes));
  }
  return out;
}

at::Tensor linear_add(const at::Tensor& residual,
                      const at::Tensor& x,
                      const at::Tensor& weight,
                      bool input_first) {
  return residual + (x.has_storage() && !input_first ? at::linear(x, weight.flatten(0, -2))
                                                     : linears(x, {weight}, input_first)[0]);
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

namespace {

// Returns which keys each query sees, if that is not all keys up to its own: [S, S], or [B, 1, S,
// S] with documents. With context parallelism, a rank has only some of the queries, so their
// indices follow from the documents.
std::optional<at::Tensor> mask_of(const at::Tensor& q, int64_t window, const Documents& documents) {
  const int64_t length = q.size(1);
  const bool windowed = window > 0 && window < length;
  const auto options = at::TensorOptions().device(q.device());
  if (documents.starts.defined()) {
    at::Tensor first = documents.starts;
    const at::Tensor last = first + documents.positions;
    if (windowed) first = at::maximum(first, last - (window - 1));
    const at::Tensor keys = at::arange(length, options.dtype(at::kLong));
    return at::logical_and(keys >= first.unsqueeze(-1), keys <= last.unsqueeze(-1)).unsqueeze(1);
  }
  if (!windowed) return std::nullopt;
  return at::ones({length, length}, options.dtype(at::kBool)).tril().triu(1 - window);
}

}  // namespace

at::Tensor causal_attention(const at::Tensor& q,
                            const at::Tensor& k,
                            const at::Tensor& v,
                            int64_t window,
                            const Documents& documents) {
  const int64_t groups = q.size(2) / k.size(2);
  const bool half = q.scalar_type() == at::kBFloat16 || q.scalar_type() == at::kHalf;
  const std::optional<at::Tensor> mask = mask_of(q, window, documents);
  // On CUDA only the kernels for 16-bit types support grouped heads, and only without a mask. For
  // the others ATen would fall back to an implementation that stores all S x S scores, so the heads
  // are repeated instead.
  if (q.is_cuda() && q.has_storage() && groups > 1 && (!half || mask))
    return composite::causal_attention(
        q, k.repeat_interleave(groups, 2), v.repeat_interleave(groups, 2), window, documents);
  const at::Tensor out = at::scaled_dot_product_attention(q.transpose(1, 2),
                                                          k.transpose(1, 2),
                                                          v.transpose(1, 2),
                                                          mask,
                                                          0.0,
                                                          /*is_causal=*/!mask,
                                                          std::nullopt,
                                                          /*enable_gqa=*/q.size(2) != k.size(2));
  return out.transpose(1, 2).flatten(2);
}

}  // namespace composite

WeightQueue* defer_weights(WeightQueue* queue) {
  return fused::defer_weights(queue);
}

GradientSums* add_gradients_to(GradientSums* sums) {
  return fused::add_gradients_to(sums);
}

namespace {

// How to multiply by a matrix.
struct Kind {
  explicit Kind(const Matrix& m)
      : product(m.product), has_bias(m.bias.defined()), input_first(m.input_first) {}
  auto operator<=>(const Kind&) const = default;
  Product product;
  bool has_bias, input_first;
};
// Matrices of one kind. biases: one for each weight, or empty.
struct Group {
  std::vector<at::Tensor> weights, biases, products;
  std::vector<int> lifetimes;  // Matrix::lifetime of each weight
};

std::vector<at::Tensor> linears_of(const Kind& kind, const at::Tensor& x, const Group& group) {
  const auto [product, has_bias, input_first] = kind;
  const bool fused =
      std::all_of(group.weights.begin(), group.weights.end(), [&](const at::Tensor& w) {
        return fused::multiplies({&x, &w});
      });
  if (product == Product::kPlain && fused)
    return fused::linears(x, group.weights, group.biases, input_first, group.lifetimes);
  std::vector<at::Tensor> out = product == Product::kPlain
                                    ? composite::linears(x, group.weights, input_first)
                                    : fp8::linears(x, group.weights, product);
  for (size_t i = 0; i < group.biases.size(); ++i) out[i] = out[i] + group.biases[i];
  return out;
}

// Adds the products with the adapters to those with the weights. All that shrink x are computed
// together, so that its gradient is summed up in one buffer. The scale multiplies the narrow
// tensor, which is the smallest one.
void add_adapters(const at::Tensor& x,
                  const std::vector<Matrix>& matrices,
                  std::vector<at::Tensor>& products) {
  std::vector<Matrix> down;
  for (const Matrix& m : matrices) {
    if (m.adapter.up.defined()) down.emplace_back(m.adapter.down);
  }
  if (down.empty()) return;
  const std::vector<at::Tensor> narrow = linears(x, down);
  size_t next = 0;
  for (size_t i = 0; i < matrices.size(); ++i) {
    const LowRank& a = matrices[i].adapter;
    if (a.up.defined()) products[i] = linear_add(products[i], narrow[next++] * a.scale, a.up);
  }
}

}  // namespace

std::vector<at::Tensor> linears(const at::Tensor& x, const std::vector<Matrix>& matrices) {
  std::map<Kind, Group> groups;
  for (const Matrix& m : matrices) {
    groups[Kind(m)].weights.push_back(m.weight);
    groups[Kind(m)].lifetimes.push_back(m.lifetime);
    if (m.bias.defined()) groups[Kind(m)].biases.push_back(m.bias.flatten());
  }
  for (auto& [kind, group] : groups) group.products = linears_of(kind, x, group);
  std::map<Kind, size_t> next;
  std::vector<at::Tensor> out;
  for (const Matrix& m : matrices) out.push_back(groups[Kind(m)].products[next[Kind(m)]++]);
  add_adapters(x, matrices, out);
  return out;
}

at::Tensor linear_add(const at::Tensor& residual, const at::Tensor& x, const Matrix& matrix) {
  const auto& [weight, bias, product, input_first, adapter, lifetime] = matrix;
  if (adapter.up.defined()) {
    Matrix plain = matrix;
    plain.adapter = {};
    std::vector<at::Tensor> sum{linear_add(residual, x, plain)};
    add_adapters(x, {matrix}, sum);
    return sum[0];
  }
  if (product == Product::kPlain && fused::multiplies({&residual, &x, &weight}))
    return fused::linear_add(
        residual, x, weight, bias.defined() ? std::optional(bias) : std::nullopt, input_first);
  const at::Tensor sum = product == Product::kPlain
                             ? composite::linear_add(residual, x, weight, input_first)
                             : residual + fp8::linears(x, {weight}, product)[0];
  return bias.defined() ? sum + bias : sum;
}

// On the CPU ATen adds up the gradient in the type of the weight. A sum of equal terms in bf16
// stops growing at 256 times the term, so there is a separate node for 16-bit types.
at::Tensor embedding(const at::Tensor& weight, const at::Tensor& ids) {
  return weight.element_size() == 2 && fused::takes({&weight}) ? fused::embedding(weight, ids)
                                                               : composite::embedding(weight, ids);
}

Normed norm_and_residual(const at::Tensor& x, const at::Tensor& weight, double eps) {
  if (device::takes({&x, &weight}) && x.scalar_type() == weight.scalar_type())
    return device::rms_norm(x, weight, eps);
  if (fused::takes({&x, &weight})) return fused::rms_norm(x, weight, eps);
  return {composite::rms_norm(x, weight, eps), x};
}

at::Tensor rms_norm(const at::Tensor& x, const at::Tensor& weight, double eps) {
  return norm_and_residual(x, weight, eps).norm;
}

QueriesAndKeys rotary(const at::Tensor& q,
                      const at::Tensor& k,
                      const at::Tensor& cos,
                      const at::Tensor& sin) {
  if (fused::multiplies({&q, &k}) && fused::rotates(q, cos, sin))
    return fused::rotary(q, k, cos, sin);
  return {composite::rotary(q, cos, sin), composite::rotary(k, cos, sin)};
}

// ATen's own operators are one node each, and distributed tensors intercept them.
at::Tensor layer_norm(const at::Tensor& x,
                      const at::Tensor& weight,
                      const at::Tensor& bias,
                      double eps) {
  return at::layer_norm(x, weight.sizes(), weight, bias, eps);
}

at::Tensor gelu(const at::Tensor& x, bool by_tanh) {
  return at::gelu(x, by_tanh ? "tanh" : "none");
}

at::Tensor swiglu(const at::Tensor& gate, const at::Tensor& up) {
  return fused::multiplies({&gate, &up}) ? fused::swiglu(gate, up) : composite::swiglu(gate, up);
}

namespace {

// Returns the lengths of all documents of starts [B, S], sequence by sequence.
std::vector<int64_t> lengths_of(const at::Tensor& starts) {
  const at::Tensor rows = starts.contiguous();
  const auto* start = rows.const_data_ptr<int64_t>();
  std::vector<int64_t> lengths;
  for (int64_t i = 0; i < rows.numel(); ++i) {
    if (start[i] == i % rows.size(1)) lengths.push_back(0);
    ++lengths.back();
  }
  return lengths;
}

// Attends in one document after the other. ATen's kernel for the CPU would compute all S x S scores
// of a mask.
at::Tensor attention_by_document(const at::Tensor& q,
                                 const at::Tensor& k,
                                 const at::Tensor& v,
                                 int64_t window,
                                 const at::Tensor& starts) {
  const std::vector<int64_t> lengths = lengths_of(starts);
  const auto parts = [&](const at::Tensor& t) {
    return t.flatten(0, 1).unsqueeze(0).split_with_sizes(lengths, 1);
  };
  const auto qs = parts(q), ks = parts(k), vs = parts(v);
  std::vector<at::Tensor> out;
  for (size_t i = 0; i < lengths.size(); ++i)
    out.push_back(causal_attention(qs[i], ks[i], vs[i], window));
  return at::cat(out, 1).view({q.size(0), q.size(1), -1});
}

}  // namespace

at::Tensor causal_attention(const at::Tensor& q,
                            const at::Tensor& k,
                            const at::Tensor& v,
                            int64_t window,
                            const Documents& documents) {
  if (device::takes({&q, &k, &v})) return composite::causal_attention(q, k, v, window, documents);
  if (q.size(1) <= fused::kLongestAttention && fused::takes({&q, &k, &v}))
    return fused::causal_attention(q, k, v, window, documents.starts);
  if (documents.starts.defined() && q.is_cpu() && q.has_storage())
    return attention_by_document(q, k, v, window, documents.starts);
  return composite::causal_attention(q, k, v, window, documents);
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
