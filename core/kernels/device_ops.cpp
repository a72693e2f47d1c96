// Autograd nodes around the kernels of core/cuda, for operators that are wasteful when composed of
// ATen operators:
//
//   rms_norm       the gradients of the norm and of the residual are added in the same pass.
//   cross_entropy  log_softmax makes an fp32 copy of the logits, the largest tensor of a model.
//                  Here the gradient overwrites the logits.
//
// Nothing here reads a value on the host, so a step can be recorded as a CUDA graph.
#include "core/kernels/device_ops.hpp"

#include <ATen/ATen.h>
#include <torch/csrc/autograd/custom_function.h>

#include <algorithm>

#include "core/cuda/cross_entropy.hpp"
#include "core/cuda/device_runtime.hpp"
#include "core/kernels/neighbours.hpp"
#include "core/kernels/ops.hpp"
#include "core/kernels/weight_gradients.hpp"

namespace yoke::ops::device {
namespace {

static_assert(kUncountedTarget == kIgnoredTarget);

using torch::autograd::AutogradContext;
using torch::autograd::variable_list;

// The type of computations: fp64 for fp64, otherwise fp32.
at::ScalarType wide_type(const at::Tensor& t) {
  return t.scalar_type() == at::kDouble ? at::kDouble : at::kFloat;
}

// Returns the norm of x and x itself. If the caller uses x only through these results, both of its
// gradients arrive here, and the kernel adds them.
struct NormNode : torch::autograd::Function<NormNode> {
  static variable_list forward(AutogradContext* ctx,
                               const at::Tensor& x,
                               const at::Tensor& weight,
                               double eps) {
    const at::Tensor input = x.contiguous();
    const at::Tensor y = at::empty(input.sizes(), input.options());
    const int64_t columns = weight.numel(), rows = input.numel() / columns;
    const at::Tensor scales = at::empty({rows}, input.options().dtype(wide_type(input)));
    cuda_runtime().rms_norm(
        y.view({rows, columns}), scales, input.view({rows, columns}), weight, eps);
    ctx->save_for_backward({input, weight, scales});
    ctx->set_materialize_grads(false);
    return {y, x};
  }
  static variable_list backward(AutogradContext* ctx, variable_list dy) {
    const variable_list saved = ctx->get_saved_variables();
    const at::Tensor &x = saved[0], &weight = saved[1], &scales = saved[2];
    if (!dy[0].defined()) return {dy[1], at::Tensor(), at::Tensor()};
    const auto rows = [&](const at::Tensor& t) {
      return t.defined() ? t.contiguous().view({scales.numel(), weight.numel()}) : t;
    };
    const at::Tensor dx = at::empty_like(x);
    GradientSums::Sum* const sum = fused::sum_of(weight);
    const at::ScalarType type = sum == nullptr ? x.scalar_type() : sum->values.scalar_type();
    const bool in_place = sum != nullptr && (type == x.scalar_type() || type == wide_type(x));
    const at::Tensor dweight = in_place ? sum->values : at::empty_like(weight);
    cuda_runtime().rms_norm_backward({rows(dx), dweight, in_place && sum->written},
                                     rows(dy[0]),
                                     rows(dy[1]),
                                     rows(x),
                                     weight,
                                     scales);
    if (in_place) sum->written = true;
    return {dx, in_place ? at::Tensor() : dweight, at::Tensor()};
  }
};

struct CrossEntropyNode : torch::autograd::Function<CrossEntropyNode> {
  static at::Tensor forward(AutogradContext* ctx,
                            const at::Tensor& logits,
                            const at::Tensor& targets) {
    const auto options = logits.options().dtype(wide_type(logits));
    const at::Tensor losses = at::empty({logits.size(0)}, options), lse = at::empty_like(losses);
    cuda_runtime().cross_entropy(losses, lse, logits, targets);
    ctx->save_for_backward({logits, targets, lse});
    return losses.sum();
  }
  static variable_list backward(AutogradContext* ctx, variable_list dy) {
    const variable_list saved = ctx->get_saved_variables();
    const at::Tensor gradient = saved[0].detach();  // the memory of the logits
    cuda_runtime().cross_entropy_backward(gradient, saved[1], saved[2], dy[0].contiguous());
    torch::autograd::impl::bump_version(gradient);  // makes another use of the logits an error
    return {gradient, at::Tensor()};
  }
};

}  // namespace

bool takes(std::initializer_list<const at::Tensor*> tensors) {
  return std::all_of(tensors.begin(), tensors.end(), [](const at::Tensor* t) {
    return runs_on(t->device()) && t->has_storage() && t->layout() == at::kStrided;
  });
}

Normed rms_norm(const at::Tensor& x, const at::Tensor& weight, double eps) {
  const variable_list out = NormNode::apply(x, weight.contiguous(), eps);
  return {out[0], out[1]};
}

at::Tensor cross_entropy_sum(const at::Tensor& logits, const at::Tensor& targets) {
  const at::Tensor rows = logits.flatten(0, -2);
  const bool regular = has_regular_rows(rows, rows.size(1));
  return CrossEntropyNode::apply(regular ? rows : rows.contiguous(),
                                 targets.flatten().contiguous());
}

}  // namespace yoke::ops::device
