// Linear layers with fp8 products, as one autograd node. It keeps x and the weights as they are and
// rounds them again in the backward, where most recipes scale them along another dim. What several
// products use is rounded once: x for all weights, and dy for both gradients if the recipe rounds it
// alike.
//
// Weights are rounded at every use. Rounding them once per step was rejected for now: it would keep
// a second copy of parameters that a sharded backend frees after each use.
#include <ATen/ATen.h>
#include <torch/csrc/autograd/custom_function.h>

#include <memory>

#include "core/kernels/fp8.hpp"
#include "core/kernels/weight_gradients.hpp"

namespace yoke::ops::fp8 {
namespace {

using torch::autograd::AutogradContext;
using torch::autograd::variable_list;

// An operand that is rounded when it is first used.
class Operand {
 public:
  Operand(at::Tensor matrix, const Rounding& rounding)
      : matrix_(std::move(matrix)), rounding_(rounding) {}
  const at::Tensor& get() {
    if (!rounded_.defined()) rounded_ = rounded(matrix_, rounding_);
    return rounded_;
  }

 private:
  at::Tensor matrix_, rounded_;
  Rounding rounding_;
};

// Multiplies rows [N, in] by the transpose of each weight [out, in].
struct Fp8LinearsNode : torch::autograd::Function<Fp8LinearsNode> {
  static variable_list forward(AutogradContext* ctx,
                               const at::Tensor& rows,
                               at::TensorList weights,
                               int64_t product) {
    const Recipe& recipe = recipe_of(static_cast<Product>(product));
    const at::Tensor x = rounded(rows, recipe.x);
    variable_list saved{rows}, out;
    for (const at::Tensor& weight : weights) {
      saved.push_back(weight);
      out.push_back(at::mm(x, rounded(weight, recipe.weight).t()).to(rows.scalar_type()));
    }
    ctx->save_for_backward(std::move(saved));
    ctx->saved_data["product"] = product;
    return out;
  }

  static variable_list backward(AutogradContext* ctx, variable_list dy) {
    const variable_list saved = ctx->get_saved_variables();
    const at::Tensor& rows = saved[0];
    const Recipe& recipe = recipe_of(static_cast<Product>(ctx->saved_data["product"].toInt()));
    const auto x = std::make_shared<Operand>(rows, recipe.x_for_dw);
    variable_list grads(saved.size() + 1);  // the last one is that of `product`
    at::Tensor sum;
    for (size_t i = 0; i < dy.size(); ++i) {
      const at::Tensor& weight = saved[i + 1];
      const auto for_dx = std::make_shared<Operand>(dy[i], recipe.dy);
      if (ctx->needs_input_grad(0)) {
        const at::Tensor dx = at::mm(for_dx->get(), rounded(weight, recipe.weight_for_dx));
        sum = sum.defined() ? sum.add(dx) : dx;
      }
      if (!ctx->needs_input_grad(i + 1)) continue;
      const auto for_dw = recipe.dy_for_dw == recipe.dy
                              ? for_dx
                              : std::make_shared<Operand>(dy[i], recipe.dy_for_dw);
      grads[i + 1] = fused::now_or_later(weight, [for_dw, x, type = rows.scalar_type()] {
        return fused::weight_gradient(for_dw->get(), x->get()).to(type);
      });
    }
    if (sum.defined()) grads[0] = sum.to(rows.scalar_type());
    return grads;
  }
};

}  // namespace

std::vector<at::Tensor> linears(const at::Tensor& x,
                                const std::vector<at::Tensor>& weights,
                                Product product) {
  std::vector<at::Tensor> out = Fp8LinearsNode::apply(
      x.flatten(0, -2), at::TensorList(weights), static_cast<int64_t>(product));
  std::vector<int64_t> sizes = x.sizes().vec();
  for (at::Tensor& product_of_rows : out) {
    sizes.back() = product_of_rows.size(1);
    product_of_rows = product_of_rows.view(sizes);
  }
  return out;
}

}  // namespace yoke::ops::fp8
