// Matrix products as single autograd nodes. With plain ATen operators, each projection of the same
// x would compute its own gradient of x, these would be added afterwards, and every view would be
// another node. Here the products write into one buffer: the first stores, the others accumulate
// (addmm). Likewise, linear_add() accumulates its product onto the residual.
//
//   y_i = x W_i^T        dx = sum_i dy_i W_i        dW_i = dy_i^T x
#include "core/kernels/fused_support.hpp"
#include "core/kernels/weight_gradients.hpp"

namespace yoke::ops::fused {
namespace {

at::Tensor rows_of(const at::Tensor& t) {
  return t.view({-1, t.size(-1)});
}

std::vector<int64_t> with_last(const at::Tensor& t, int64_t last) {
  std::vector<int64_t> sizes = t.sizes().vec();
  sizes.back() = last;
  return sizes;
}

// Returns whether LibTorch computes products of bf16 matrices with oneDNN. Without AVX-512 it uses
// plain loops, which are up to thirty times slower than products in fp32.
bool has_bf16_products() {
#if defined(__x86_64__)
  static const bool wide_vectors = __builtin_cpu_supports("avx512bw") &&
                                   __builtin_cpu_supports("avx512vl") &&
                                   __builtin_cpu_supports("avx512dq");
  return wide_vectors && at::globalContext().userEnabledMkldnn();
#else
  return false;
#endif
}

// Computes out [M, N] = a [M, K] b [K, N], plus `add` [M, N] if it is given. `add` may be `out`.
void multiply(at::Tensor out,
              const at::Tensor& a,
              const at::Tensor& b,
              const at::Tensor& add = {}) {
  if (out.scalar_type() == at::kBFloat16 && !has_bf16_products()) {
    at::Tensor sum = at::mm(a.to(at::kFloat), b.to(at::kFloat));
    if (add.defined()) sum.add_(add);
    out.copy_(sum);
  } else if (add.defined()) {
    at::addmm_out(out, add, a, b);
  } else {
    at::mm_out(out, a, b);
  }
}

// Returns x [..., in] times the transpose of weight [out, in]. The product is written into a fresh
// tensor, because a view of a product would be another node.
at::Tensor product(const at::Tensor& x, const at::Tensor& weight) {
  at::Tensor out = at::empty(with_last(x, weight.size(0)), x.options());
  multiply(rows_of(out), rows_of(x), weight.t());
  return out;
}

// Multiplies x by each weight.
struct LinearsNode : torch::autograd::Function<LinearsNode> {
  static variable_list forward(AutogradContext* ctx, const at::Tensor& x, at::TensorList weights) {
    const at::Tensor input = x.contiguous();
    variable_list saved{input}, out;
    for (const at::Tensor& weight : weights) {
      saved.push_back(weight);
      out.push_back(product(input, weight));
    }
    ctx->save_for_backward(std::move(saved));
    return out;
  }

  static variable_list backward(AutogradContext* ctx, variable_list dy) {
    const variable_list saved = ctx->get_saved_variables();
    variable_list grads(saved.size());
    at::Tensor rows;
    for (size_t i = 0; i < dy.size(); ++i) {
      const at::Tensor dyi = dy[i].contiguous();
      if (ctx->needs_input_grad(i + 1))
        grads[i + 1] = now_or_later(saved[i + 1], [dyi, x = saved[0]] {
          return weight_gradient(rows_of(dyi), rows_of(x));
        });
      if (!ctx->needs_input_grad(0)) continue;
      if (i == 0) {
        grads[0] = at::empty_like(saved[0]);
        rows = rows_of(grads[0]);
        multiply(rows, rows_of(dyi), saved[1]);
      } else {
        multiply(rows, rows_of(dyi), saved[i + 1], rows);
      }
    }
    return grads;
  }
};

// Computes residual + x W^T. The gradient of the residual is dy itself.
struct LinearAddNode : torch::autograd::Function<LinearAddNode> {
  static at::Tensor forward(AutogradContext* ctx,
                            const at::Tensor& residual,
                            const at::Tensor& x,
                            const at::Tensor& weight) {
    const at::Tensor input = x.contiguous();
    ctx->save_for_backward({input, weight});
    at::Tensor out = at::empty(residual.sizes(), residual.options());
    multiply(rows_of(out), rows_of(input), weight.t(), rows_of(residual.contiguous()));
    return out;
  }

  static variable_list backward(AutogradContext* ctx, variable_list dy) {
    const variable_list saved = ctx->get_saved_variables();
    const at::Tensor d = dy[0].contiguous();
    variable_list grads(3);
    grads[0] = dy[0];
    if (ctx->needs_input_grad(1)) {
      grads[1] = at::empty_like(saved[0]);
      multiply(rows_of(grads[1]), rows_of(d), saved[1]);
    }
    if (ctx->needs_input_grad(2))
      grads[2] = now_or_later(
          saved[1], [d, x = saved[0]] { return weight_gradient(rows_of(d), rows_of(x)); });
    return grads;
  }
};

// Replaces LibTorch's node of mm, which computes both gradients at once and so cannot defer one of
// them. The formulas are the same. A distributed dy that must be gathered for the gradient of the
// rows stays gathered, so the other product causes no communication when it comes later.
struct ProductOfRowsNode : torch::autograd::Function<ProductOfRowsNode> {
  static at::Tensor forward(AutogradContext* ctx,
                            const at::Tensor& rows,
                            const at::Tensor& weight) {
    ctx->save_for_backward({rows, weight});
    return at::mm(rows, weight.t());
  }

  static variable_list backward(AutogradContext* ctx, variable_list dy) {
    const variable_list saved = ctx->get_saved_variables();
    variable_list grads(2);
    if (ctx->needs_input_grad(0)) grads[0] = at::mm(dy[0], saved[1]);
    if (ctx->needs_input_grad(1))
      grads[1] =
          now_or_later(saved[1], [d = dy[0], rows = saved[0]] { return weight_gradient(d, rows); });
    return grads;
  }
};

thread_local WeightQueue* deferred = nullptr;

}  // namespace

WeightQueue* defer_weights(WeightQueue* queue) {
  return std::exchange(deferred, queue);
}

WeightQueue* deferred_weights() {
  return deferred;
}

at::Tensor weight_gradient(const at::Tensor& dy, const at::Tensor& x) {
  if (!dy.has_storage()) return at::mm(dy.t(), x);
  at::Tensor out = at::empty({dy.size(1), x.size(1)}, x.options());
  multiply(out, dy.t(), x);
  return out;
}

bool takes(std::initializer_list<const at::Tensor*> tensors) {
  const at::ScalarType type = (*tensors.begin())->scalar_type();
  if (type != at::kFloat && type != at::kDouble && type != at::kBFloat16) return false;
  for (const at::Tensor* t : tensors) {
    if (!t->is_cpu() || !t->has_storage() || t->layout() != at::kStrided ||
        t->scalar_type() != type)
      return false;
    if (t->numel() == 0) return false;
  }
  return true;
}

std::vector<at::Tensor> linears(const at::Tensor& x, const std::vector<at::Tensor>& weights) {
  return LinearsNode::apply(x, at::TensorList(weights));
}

at::Tensor linear_add(const at::Tensor& residual, const at::Tensor& x, const at::Tensor& weight) {
  return LinearAddNode::apply(residual, x, weight);
}

at::Tensor product_of_rows(const at::Tensor& rows, const at::Tensor& weight) {
  return ProductOfRowsNode::apply(rows, weight);
}

}  // namespace yoke::ops::fused
