// Linear layers with fp8 products, as one autograd node. If the product for the gradient of the
// weights rounds x, it is rounded for it in the forward, and the node keeps the rounded numbers, 1
// byte for each element. Otherwise it keeps x as it is. What several products use is rounded once:
// x for all weights, and dy for both gradients if the recipe rounds it alike.
//
// Weights are rounded at every use, unless the backend promises that they stay the same for a while
// (fp8_weights.hpp). Keeping their numbers always was rejected: a backend with shards would hold
// copies of parameters that it frees after each use.
#include <ATen/ATen.h>
#include <torch/csrc/autograd/custom_function.h>

#include <algorithm>
#include <memory>

#include "core/kernels/fp8.hpp"
#include "core/kernels/fp8_operand.hpp"
#include "core/kernels/fp8_weights.hpp"
#include "core/kernels/weight_gradients.hpp"

namespace yoke::ops::fp8 {
namespace {

using torch::autograd::AutogradContext;
using torch::autograd::variable_list;

// Rounds x for the forward. keep: gradients of weights will need x. Then `kept` becomes the two
// tensors of Input::later, or x itself and an undefined one.
Factor round_x(const at::Tensor& x, const Recipe& recipe, bool keep, variable_list& kept) {
  const bool empty = x.numel() == 0;  // such a matrix has no largest element
  // A distributed tensor, which has no storage, is kept in fp8 only if it has a single scale.
  const bool packs =
      recipe.x_for_dw == recipe.x || (recipe.x_for_dw.scaling != Scaling::kNone && x.has_storage());
  if (keep && !empty && packs) {
    const Input input = round_input(x, recipe.x, recipe.x_for_dw);
    kept = {input.later.numbers, input.later.unscale};
    return input.as_is;
  }
  kept = {keep ? x : at::Tensor(), {}};
  return factors(x, &recipe.x, nullptr).as_is;
}

// The transpose of x, which is made when it is first used.
class TransposedX {
 public:
  // kept: what round_x() has kept of x.
  TransposedX(variable_list kept, at::ScalarType type, const Recipe& recipe)
      : kept_(std::move(kept)), type_(type), recipe_(recipe) {}
  const Factor& get() {
    if (!factor_.numbers.defined())
      factor_ = kept_[1].defined() ? transposed({kept_[0], kept_[1]}, type_)
                                   : factors(kept_[0], nullptr, &recipe_.x_for_dw).transposed;
    return factor_;
  }

 private:
  variable_list kept_;
  at::ScalarType type_;
  const Recipe& recipe_;
  Factor factor_;
};

// Returns dy^T x.
at::Tensor weight_gradient(const Factor& dy, const Factor& x, at::ScalarType type) {
  if (dy.is_fp8()) return product(dy, x, type, /*fast=*/false);
  return fused::weight_gradient(dy.numbers.t(), x.numbers.t()).to(type);
}

// Return a weight as an operand of the product in the forward, and of the product that gives the
// gradient of the input. kept: the cache of the step; may be NULL.
Factor forward_operand(const at::Tensor& weight, const Recipe& recipe, KeptWeights* kept) {
  if (kept != nullptr && KeptWeights::takes(weight))
    return as_is(kept->get(weight, recipe).as_is, weight.scalar_type());
  return factors(weight, &recipe.weight, nullptr).as_is;
}
Factor backward_operand(const at::Tensor& weight, const Recipe& recipe, KeptWeights* kept) {
  if (kept != nullptr && KeptWeights::takes(weight))
    return transposed(kept->get(weight, recipe).transposed, weight.scalar_type());
  return factors(weight, nullptr, &recipe.weight_for_dx).transposed;
}

// Multiplies rows [N, in] by the transpose of each weight [out, in].
struct Fp8LinearsNode : torch::autograd::Function<Fp8LinearsNode> {
  static variable_list forward(AutogradContext* ctx,
                               const at::Tensor& rows,
                               at::TensorList weights,
                               int64_t product_name,
                               bool keep_x) {
    const Recipe& recipe = recipe_of(static_cast<Product>(product_name));
    const at::ScalarType type = rows.scalar_type();
    variable_list saved, out;
    const Factor x = round_x(rows, recipe, keep_x, saved);
    for (const at::Tensor& weight : weights) {
      saved.push_back(weight);
      const Factor w = forward_operand(weight, recipe, kept_weights().get());
      out.push_back(product(x, w, type, /*fast=*/true));
    }
    if (kept_weights()) ctx->saved_data["kept"] = c10::IValue::make_capsule(kept_weights());
    ctx->save_for_backward(std::move(saved));
    ctx->saved_data["product"] = product_name;
    return out;
  }

  static variable_list backward(AutogradContext* ctx, variable_list dy) {
    const variable_list saved = ctx->get_saved_variables();
    const at::ScalarType type = dy[0].scalar_type();
    const Recipe& recipe = recipe_of(static_cast<Product>(ctx->saved_data["product"].toInt()));
    const auto x = std::make_shared<TransposedX>(
        variable_list(saved.begin(), saved.begin() + 2), type, recipe);
    const auto kept = ctx->saved_data.find("kept");
    const c10::intrusive_ptr<torch::CustomClassHolder> holder =
        kept == ctx->saved_data.end() ? nullptr : kept->second.toCapsule();
    auto* const kept_of_step = static_cast<KeptWeights*>(holder.get());
    variable_list grads(dy.size() + 3);  // those of x, of the weights, and two without any
    at::Tensor sum;
    for (size_t i = 0; i < dy.size(); ++i) {
      const at::Tensor& weight = saved[i + 2];
      const bool wants_dx = ctx->needs_input_grad(0), wants_dw = ctx->needs_input_grad(i + 1);
      const Factors d =
          factors(dy[i], wants_dx ? &recipe.dy : nullptr, wants_dw ? &recipe.dy_for_dw : nullptr);
      if (wants_dx) {
        const Factor w = backward_operand(weight, recipe, kept_of_step);
        // Emulated products are added before they are converted to bf16. A device converts each.
        const at::ScalarType exact = d.as_is.is_fp8() ? type : d.as_is.numbers.scalar_type();
        const at::Tensor dx = product(d.as_is, w, exact, /*fast=*/false);
        sum = sum.defined() ? sum.add(dx) : dx;
      }
      if (!wants_dw) continue;
      grads[i + 1] = fused::now_or_later(weight, [for_dw = d.transposed, x, type] {
        return weight_gradient(for_dw, x->get(), type);
      });
    }
    if (sum.defined()) grads[0] = sum.to(type);
    return grads;
  }
};

}  // namespace

std::vector<at::Tensor> linears(const at::Tensor& x,
                                const std::vector<at::Tensor>& weights,
                                Product product) {
  const bool keep_x = at::GradMode::is_enabled() &&
                      std::any_of(weights.begin(), weights.end(), [](const at::Tensor& w) {
                        return w.requires_grad();
                      });
  std::vector<at::Tensor> out = Fp8LinearsNode::apply(
      x.flatten(0, -2), at::TensorList(weights), static_cast<int64_t>(product), keep_x);
  std::vector<int64_t> sizes = x.sizes().vec();
  for (at::Tensor& product_of_rows : out) {
    sizes.back() = product_of_rows.size(1);
    product_of_rows = product_of_rows.view(sizes);
  }
  return out;
}

}  // namespace yoke::ops::fp8
