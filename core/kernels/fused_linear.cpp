// Matrix products as single autograd nodes. With plain ATen operators, each projection of the same
// x would compute its own gradient of x, these would be added afterwards, and every view would be
// another node. Here the products write into one buffer: the first stores, the others accumulate
// (addmm). Likewise, linear_add() accumulates its product onto the residual.
//
//   y_i = x W_i^T + b_i    dx = sum_i dy_i W_i    dW_i = dy_i^T x    db_i = sum of dy_i's rows
//
// The nodes are the same on the CPU and on a device; only multiply() differs. On a device dW_i is
// added to the backend's sum by the product itself, even if the sum has a wider type. Weights that
// are neighbours in memory are multiplied there as one matrix, because a narrow product does not
// fill a large GPU.
#include <algorithm>

#include "core/cuda/device_runtime.hpp"
#include "core/kernels/fused_support.hpp"
#include "core/kernels/neighbours.hpp"
#include "core/kernels/weight_gradients.hpp"

namespace yoke::ops::fused {
namespace {

at::Tensor rows_of(const at::Tensor& t) {
  return t.view({-1, t.size(-1)});
}

// Returns t, or a copy, such that rows_of() is a matrix with contiguous rows at equal distances.
at::Tensor with_regular_rows(const at::Tensor& t) {
  return runs_on(t.device()) && has_regular_rows(t, t.size(-1)) ? t : t.contiguous();
}

// Returns a tensor for a product. A device multiplies faster if rows begin at multiples of 16
// bytes, which they do not in the logits of a model with, e.g., 50257 tokens. There the rows begin
// further apart. In a narrow result the gaps would cost too much memory.
at::Tensor empty_product(const std::vector<int64_t>& sizes, const at::TensorOptions& options) {
  constexpr int64_t kRow = 64, kNarrow = 512;  // elements
  const auto row_bytes = sizes.back() * static_cast<int64_t>(options.dtype().itemsize());
  if (row_bytes % 16 == 0 || sizes.back() < kNarrow || !runs_on(options.device()))
    return at::empty(sizes, options);
  std::vector<int64_t> strides(sizes.size(), 1);
  int64_t stride = (sizes.back() + kRow - 1) / kRow * kRow;
  for (size_t i = sizes.size() - 1; i-- > 0; stride *= sizes[i]) strides[i] = stride;
  return at::empty_strided(sizes, strides, options);
}

std::vector<int64_t> with_last(const at::Tensor& t, int64_t last) {
  std::vector<int64_t> sizes = t.sizes().vec();
  sizes.back() = last;
  return sizes;
}

// Returns a weight as a matrix [in, out]; see ops::Matrix.
at::Tensor in_by_out(const at::Tensor& weight, bool input_first) {
  return input_first ? weight.flatten(1) : weight.flatten(0, -2).t();
}

int64_t inputs_of(const at::Tensor& weight, bool input_first) {
  return weight.size(input_first ? 0 : -1);
}
int64_t outputs_of(const at::Tensor& weight, bool input_first) {
  return weight.numel() / inputs_of(weight, input_first);
}

// Returns the input of a product if the backward needs it, which only the gradient of a weight
// does. In fine-tuning most weights are frozen, and most inputs are used by nothing else.
at::Tensor kept_input(const at::Tensor& input, at::TensorList weights) {
  const bool needed = std::any_of(
      weights.begin(), weights.end(), [](const at::Tensor& w) { return w.requires_grad(); });
  return needed ? input : at::Tensor();
}

// Returns whether LibTorch computes products of this type fast. For bf16 it uses oneDNN, but
// without AVX-512 plain loops, which are up to thirty times slower than products in fp32. For fp16
// it uses plain loops on all but the newest processors.
bool has_fast_products(at::ScalarType type) {
  if (type == at::kHalf) return false;
  if (type != at::kBFloat16) return true;
#if defined(__x86_64__)
  static const bool wide_vectors = __builtin_cpu_supports("avx512bw") &&
                                   __builtin_cpu_supports("avx512vl") &&
                                   __builtin_cpu_supports("avx512dq");
  return wide_vectors && at::globalContext().userEnabledMkldnn();
#else
  return false;
#endif
}

// Computes out [M, N] = a [M, K] b [K, N], plus `add` [M, N] or [N] if it is given. `add` may be
// `out`.
void multiply(at::Tensor out,
              const at::Tensor& a,
              const at::Tensor& b,
              const at::Tensor& add = {}) {
  const bool is_bias = add.defined() && add.dim() == 1;
  if (runs_on(out.device()) && !is_bias) {
    cuda_runtime().multiply(out, a, b, add);
  } else if (out.is_cpu() && !has_fast_products(out.scalar_type())) {
    at::Tensor sum = at::mm(a.to(at::kFloat), b.to(at::kFloat));
    if (add.defined()) sum.add_(add);
    out.copy_(sum);
  } else if (add.defined()) {
    at::addmm_out(out, add, a, b);
  } else {
    at::mm_out(out, a, b);
  }
}

// Returns x [..., in] times a weight, plus the bias if it is defined. The product is written into a
// fresh tensor, because a view of a product would be another node.
at::Tensor product(const at::Tensor& x,
                   const at::Tensor& weight,
                   const at::Tensor& bias,
                   bool input_first) {
  at::Tensor out = empty_product(with_last(x, outputs_of(weight, input_first)), x.options());
  multiply(rows_of(out), rows_of(x), in_by_out(weight, input_first), bias);
  return out;
}

// Returns x [..., in] times neighbouring weights: parts of one product. They are made where
// autograd does not see them, because a view of a product would be another node.
variable_list joint_products(const at::Tensor& x, at::TensorList weights) {
  const at::Tensor all = stacked(weights);
  const at::Tensor out = empty_product(with_last(x, all.size(0)), x.options());
  multiply(rows_of(out), rows_of(x), all.t());
  std::vector<int64_t> columns;
  for (const at::Tensor& weight : weights) columns.push_back(weight.size(0));
  const at::AutoDispatchBelowADInplaceOrView unseen;
  return parts_of(out, columns);
}

// Adds a^T b, the gradient of one weight or of neighbouring ones, to the sums that the backend
// keeps, and returns true. Returns false if that would not save a pass over memory, or if there are
// no such sums that are neighbours, too.
bool add_to_sums(at::TensorList weights, const at::Tensor& a, const at::Tensor& b) {
  if (!a.has_storage()) return false;
  std::vector<GradientSums::Sum*> sums;
  variable_list parts;
  for (const at::Tensor& weight : weights) {
    GradientSums::Sum* const sum = sum_of(weight);
    if (sum == nullptr || (!sums.empty() && sum->written != sums[0]->written)) return false;
    sums.push_back(sum);
    parts.push_back(sum->values.view({-1, b.size(1)}));
  }
  if (!are_stacked(parts)) return false;
  const at::Tensor values = stacked(parts);
  const at::ScalarType type = a.scalar_type(), sum_type = values.scalar_type();
  const bool written = sums[0]->written;
  if (runs_on(a.device())) {
    if (sum_type != type && !(sum_type == at::kFloat && a.element_size() == 2)) return false;
    cuda_runtime().multiply(values, a.t(), b, written ? values : at::Tensor());
  } else {
    if (sum_type != type || written || !has_fast_products(type)) return false;
    multiply(values, a.t(), b);
  }
  for (GradientSums::Sum* sum : sums) sum->written = true;
  return true;
}

// Returns the gradient of a weight, or leaves it to a sum or a queue and returns an undefined
// tensor. dy and x are rows. A gradient that comes from the queue goes to the sum as well, so that
// it is rounded in the same way.
at::Tensor gradient_of(const at::Tensor& weight,
                       const at::Tensor& dy,
                       const at::Tensor& x,
                       bool input_first) {
  const at::Tensor &a = input_first ? x : dy, &b = input_first ? dy : x;
  return now_or_later(weight, [weight, a, b] {
    if (add_to_sums(weight, a, b)) return at::Tensor();
    const at::Tensor gradient = weight_gradient(a, b);
    return weight.dim() == 2 ? gradient : gradient.view(weight.sizes());
  });
}

// Returns the gradient of a bias: the sum over the rows, in at least fp32.
at::Tensor bias_gradient(const at::Tensor& dy) {
  return rows_of(dy).sum(0, /*keepdim=*/false, wide_type(dy)).to(dy.scalar_type());
}

// Multiplies x by each weight and adds its bias. The variables are x, the weights, the biases.
struct LinearsNode : torch::autograd::Function<LinearsNode> {
  static variable_list forward(AutogradContext* ctx,
                               const at::Tensor& x,
                               at::TensorList weights,
                               at::TensorList biases,
                               bool input_first,
                               const std::vector<int>& lifetimes) {
    const at::Tensor input = x.contiguous();
    variable_list saved{kept_input(input, weights)}, out;
    saved.insert(saved.end(), weights.begin(), weights.end());
    const bool joins = runs_on(x.device()) && biases.empty() && !input_first;
    for (size_t i = 0, n = 1; i < weights.size(); i += n) {
      n = joined(joins ? weights.size() - i : 1, [&](size_t count) {
        return lifetimes[i + count - 1] == lifetimes[i] && are_stacked(weights.slice(i, count));
      });
      if (n == 1) {
        const at::Tensor bias = biases.empty() ? at::Tensor() : biases[i];
        out.push_back(product(input, weights[i], bias, input_first));
      } else {
        for (at::Tensor& part : joint_products(input, weights.slice(i, n)))
          out.push_back(std::move(part));
      }
    }
    ctx->save_for_backward(std::move(saved));
    ctx->saved_data["has_biases"] = !biases.empty();
    ctx->saved_data["input_first"] = input_first;
    return out;
  }

  static variable_list backward(AutogradContext* ctx, variable_list dy) {
    const variable_list saved = ctx->get_saved_variables();
    const at::TensorList weights = at::TensorList(saved).slice(1), gradients(dy);
    const bool has_biases = ctx->saved_data["has_biases"].toBool();
    const bool input_first = ctx->saved_data["input_first"].toBool();
    const bool joins = runs_on(dy[0].device()) && !has_biases && !input_first;
    // x, the weights, the biases, input_first and lifetimes.
    variable_list grads(saved.size() + (has_biases ? dy.size() : 0) + 2);
    at::Tensor rows;
    for (size_t i = 0, n = 1; i < dy.size(); i += n) {
      n = joined(joins ? dy.size() - i : 1, [&](size_t count) {
        return ctx->needs_input_grad(i + count) == ctx->needs_input_grad(i + 1) &&
               are_stacked(weights.slice(i, count)) && are_side_by_side(gradients.slice(i, count));
      });
      const at::Tensor dyi =
          n == 1 ? with_regular_rows(dy[i]) : side_by_side(gradients.slice(i, n));
      const size_t bias = saved.size() + i;
      if (has_biases && ctx->needs_input_grad(bias)) grads[bias] = bias_gradient(dyi);
      if (ctx->needs_input_grad(i + 1)) {
        const at::Tensor x = rows_of(saved[0]);
        if (n == 1) {
          grads[i + 1] = gradient_of(weights[i], rows_of(dyi), x, input_first);
        } else if (deferred_weights() || !add_to_sums(weights.slice(i, n), rows_of(dyi), x)) {
          for (size_t j = i; j < i + n; ++j)
            grads[j + 1] = gradient_of(weights[j], rows_of(dy[j]), x, input_first);
        }
      }
      if (!ctx->needs_input_grad(0)) continue;
      const at::Tensor out_by_in =
          n == 1 ? in_by_out(weights[i], input_first).t() : stacked(weights.slice(i, n));
      const at::Tensor before = rows;
      if (i == 0) {
        grads[0] = at::empty(with_last(dyi, inputs_of(weights[0], input_first)), dyi.options());
        rows = rows_of(grads[0]);
      }
      multiply(rows, rows_of(dyi), out_by_in, before);
    }
    return grads;
  }

 private:
  // Returns how many neighbours can be joined: at most `most`. can(n) is called for n = 2, 3, ...
  // while it returns true.
  template <class F>
  static size_t joined(size_t most, const F& can) {
    size_t n = 1;
    while (n < most && can(n + 1)) ++n;
    return n;
  }
};

// Computes residual + x W^T + bias. The gradient of the residual is dy itself.
struct LinearAddNode : torch::autograd::Function<LinearAddNode> {
  static at::Tensor forward(AutogradContext* ctx,
                            const at::Tensor& residual,
                            const at::Tensor& x,
                            const at::Tensor& weight,
                            const std::optional<at::Tensor>& bias,
                            bool input_first) {
    const at::Tensor input = x.contiguous();
    ctx->save_for_backward({kept_input(input, weight), weight});
    at::Tensor out = at::empty(residual.sizes(), residual.options());
    multiply(rows_of(out),
             rows_of(input),
             in_by_out(weight, input_first),
             rows_of(with_regular_rows(residual)));
    ctx->saved_data["has_bias"] = bias.has_value();
    ctx->saved_data["input_first"] = input_first;
    if (bias) out.add_(*bias);
    return out;
  }

  static variable_list backward(AutogradContext* ctx, variable_list dy) {
    const variable_list saved = ctx->get_saved_variables();
    const at::Tensor d = with_regular_rows(dy[0]);
    const bool input_first = ctx->saved_data["input_first"].toBool();
    variable_list grads(5);
    grads[0] = dy[0];
    const bool has_bias = ctx->saved_data["has_bias"].toBool();
    if (has_bias && ctx->needs_input_grad(3)) grads[3] = bias_gradient(d);
    if (ctx->needs_input_grad(1)) {
      grads[1] = at::empty(with_last(d, inputs_of(saved[1], input_first)), d.options());
      multiply(rows_of(grads[1]), rows_of(d), in_by_out(saved[1], input_first).t());
    }
    if (ctx->needs_input_grad(2))
      grads[2] = gradient_of(saved[1], rows_of(d), rows_of(saved[0]), input_first);
    return grads;
  }
};

// Replaces LibTorch's node of mm, which computes both gradients at once and so cannot defer one of
// them. The formulas are the same. A distributed dy that must be gathered for the gradient of the
// rows stays gathered, so the other product causes no communication when it comes later.
struct ProductOfRowsNode : torch::autograd::Function<ProductOfRowsNode> {
  static at::Tensor forward(AutogradContext* ctx,
                            const at::Tensor& rows,
                            const at::Tensor& weight,
                            bool input_first) {
    ctx->save_for_backward({kept_input(rows, weight), weight});
    ctx->saved_data["input_first"] = input_first;
    return at::mm(rows, in_by_out(weight, input_first));
  }

  static variable_list backward(AutogradContext* ctx, variable_list dy) {
    const variable_list saved = ctx->get_saved_variables();
    const bool input_first = ctx->saved_data["input_first"].toBool();
    variable_list grads(3);
    if (ctx->needs_input_grad(0)) grads[0] = at::mm(dy[0], in_by_out(saved[1], input_first).t());
    if (ctx->needs_input_grad(1)) grads[1] = gradient_of(saved[1], dy[0], saved[0], input_first);
    return grads;
  }
};

}  // namespace

at::Tensor weight_gradient(const at::Tensor& dy, const at::Tensor& x) {
  if (!dy.has_storage()) return at::mm(dy.t(), x);
  at::Tensor out = at::empty({dy.size(1), x.size(1)}, x.options());
  multiply(out, dy.t(), x);
  return out;
}

namespace {

// Returns true for plain dense tensors that share one dtype for which kernels exist.
bool are_plain(std::initializer_list<const at::Tensor*> tensors) {
  const at::ScalarType type = (*tensors.begin())->scalar_type();
  if (type != at::kFloat && type != at::kDouble && type != at::kBFloat16 && type != at::kHalf)
    return false;
  return std::all_of(tensors.begin(), tensors.end(), [type](const at::Tensor* t) {
    return t->has_storage() && t->layout() == at::kStrided && t->scalar_type() == type &&
           t->numel() > 0;
  });
}

}  // namespace

bool takes(std::initializer_list<const at::Tensor*> tensors) {
  return multiplies(tensors) && (*tensors.begin())->is_cpu();
}

bool multiplies(std::initializer_list<const at::Tensor*> tensors) {
  const c10::Device device = (*tensors.begin())->device();
  return (device.is_cpu() || runs_on(device)) && are_plain(tensors) &&
         std::all_of(tensors.begin(), tensors.end(), [device](const at::Tensor* t) {
           return t->device() == device;
         });
}

std::vector<at::Tensor> linears(const at::Tensor& x,
                                const std::vector<at::Tensor>& weights,
                                const std::vector<at::Tensor>& biases,
                                bool input_first,
                                const std::vector<int>& lifetimes) {
  return LinearsNode::apply(
      x, at::TensorList(weights), at::TensorList(biases), input_first, lifetimes);
}

at::Tensor linear_add(const at::Tensor& residual,
                      const at::Tensor& x,
                      const at::Tensor& weight,
                      const std::optional<at::Tensor>& bias,
                      bool input_first) {
  return LinearAddNode::apply(residual, x, weight, bias, input_first);
}

at::Tensor product_of_rows(const at::Tensor& rows, const at::Tensor& weight, bool input_first) {
  return ProductOfRowsNode::apply(rows, weight, input_first);
}

}  // namespace yoke::ops::fused
