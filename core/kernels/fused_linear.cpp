// Matrix products as single autograd nodes. With plain ATen operators, each projection of the same
// x would compute its own gradient of x, these would be added afterwards, and every view would be
// another node. Here the products write into one buffer: the first stores, the others accumulate
// (addmm). Likewise, linear_add() accumulates its product onto the residual.
//
//   y_i = x W_i^T + b_i    dx = sum_i dy_i W_i    dW_i = dy_i^T x    db_i = sum of dy_i's rows
//
// The nodes are the same on the CPU and on a device; only multiply() differs. On a device dW_i is
// added to the backend's sum by the product itself, even if the sum has a wider type.
//
// Weights that are neighbours in memory are multiplied as one matrix. A narrow product does not
// fill a large GPU, and on a CPU each product costs several microseconds before it starts. One
// product may round differently from several, so whether products are joined depends only on the
// weights and on the layout of dy. It does not depend on whether gradients are deferred, or on
// where they go. Otherwise the ranks of a pipeline, some of which defer gradients, would train
// differently from one rank.
#include <algorithm>

#include "core/cuda/device_runtime.hpp"
#include "core/kernels/fused_support.hpp"
#include "core/kernels/neighbours.hpp"
#include "core/kernels/products.hpp"
#include "core/kernels/weight_gradients.hpp"

namespace yoke::ops::fused {
namespace {

// Returns t, or a copy, such that rows_of() is a matrix with contiguous rows at equal distances.
at::Tensor with_regular_rows(const at::Tensor& t) {
  return runs_on(t.device()) && has_regular_rows(t, t.size(-1)) ? t : t.contiguous();
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
    const bool joins = biases.empty() && !input_first;
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
    const bool joins = !has_biases && !input_first;
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
        } else {
          variable_list joint = gradients_of(weights.slice(i, n), gradients.slice(i, n), x);
          std::move(joint.begin(), joint.end(), grads.begin() + i + 1);
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
