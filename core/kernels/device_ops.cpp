// Autograd nodes around the kernels of core/cuda, for operators that are wasteful when composed of
// ATen operators:
//
//   rotary         cat() and four products read and write x several times; one kernel does it once,
//                  for queries and keys together.
//   rms_norm       the gradients of the norm and of the residual are added in the same pass.
//   swiglu         autograd saves silu(gate) besides gate and up; computing it again is cheaper
//                  than reading it.
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

static_assert(kNoTarget == kIgnoredTarget);

using torch::autograd::AutogradContext;
using torch::autograd::variable_list;

// The type of computations: fp64 for fp64, otherwise fp32.
at::ScalarType wide_type(const at::Tensor& t) {
  return t.scalar_type() == at::kDouble ? at::kDouble : at::kFloat;
}

// Returns whether the sequences of a batch [B, S, heads, D] follow each other immediately and the
// heads of a token are contiguous.
bool has_whole_tokens(const at::Tensor& t) {
  return t.stride(3) == 1 && t.stride(2) == t.size(3) &&
         (t.size(0) == 1 || t.stride(0) == t.size(1) * t.stride(1));
}

// Returns t, or a copy. Unlike contiguous(), a copy has the usual stride also for a dim of size 1,
// from which the kernel takes the distance of the tokens.
at::Tensor with_whole_tokens(const at::Tensor& t) {
  return has_whole_tokens(t) ? t : t.clone(at::MemoryFormat::Contiguous);
}

// Returns an uninitialized contiguous tensor. at::empty_like() would keep an order of strides.
at::Tensor empty(const at::Tensor& like) {
  return at::empty(like.sizes(), like.options());
}

// Rotates queries and keys. The gradient is a rotation by the opposite angles. Gradients of parts
// of one product are parts of one tensor, too, so that they can be multiplied together.
struct RotaryNode : torch::autograd::Function<RotaryNode> {
  static variable_list turned(variable_list x,
                              variable_list out,
                              const at::Tensor& cos,
                              const at::Tensor& sin,
                              double sign) {
    for (at::Tensor& t : x) t = with_whole_tokens(t);
    cuda_runtime().rotary(out, x, cos, sin, sign);
    return out;
  }
  static variable_list forward(AutogradContext* ctx,
                               const at::Tensor& q,
                               const at::Tensor& k,
                               const at::Tensor& cos,
                               const at::Tensor& sin) {
    ctx->save_for_backward({cos, sin});
    ctx->saved_data["joint"] = has_whole_tokens(q) && has_whole_tokens(k) &&
                               are_side_by_side({q.flatten(2), k.flatten(2)});
    return turned({q, k}, {empty(q), empty(k)}, cos, sin, 1);
  }
  static variable_list backward(AutogradContext* ctx, variable_list dy) {
    const variable_list saved = ctx->get_saved_variables();
    const bool joint = ctx->saved_data["joint"].toBool();
    variable_list grads =
        joint ? heads_side_by_side(dy) : variable_list{empty(dy[0]), empty(dy[1])};
    grads = turned(std::move(dy), std::move(grads), saved[0], saved[1], -1);
    grads.resize(4);
    return grads;
  }

  // Returns tensors of the shapes of x whose tokens are side by side.
  static variable_list heads_side_by_side(const variable_list& x) {
    std::vector<int64_t> columns;
    for (const at::Tensor& t : x) columns.push_back(t.size(2) * t.size(3));
    variable_list out = empty_side_by_side(x[0].sizes().slice(0, 2), columns, x[0].options());
    for (size_t i = 0; i < x.size(); ++i) out[i] = out[i].view(x[i].sizes());
    return out;
  }
};

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

struct SwigluNode : torch::autograd::Function<SwigluNode> {
  static at::Tensor forward(AutogradContext* ctx, const at::Tensor& gate, const at::Tensor& up) {
    ctx->save_for_backward({gate, up});
    const at::Tensor out = empty(gate);
    cuda_runtime().swiglu(out, gate, up);
    return out;
  }
  static variable_list backward(AutogradContext* ctx, variable_list dy) {
    const variable_list saved = ctx->get_saved_variables();
    const at::Tensor &gate = saved[0], &up = saved[1];
    variable_list grads = are_side_by_side(saved)
                              ? empty_side_by_side(gate.sizes().slice(0, gate.dim() - 1),
                                                   {gate.size(-1), up.size(-1)},
                                                   gate.options())
                              : variable_list{empty(gate), empty(up)};
    cuda_runtime().swiglu_backward(grads[0], grads[1], gate, up, dy[0].contiguous());
    return grads;
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

bool rotary_takes(const at::Tensor& x, const at::Tensor& cos, const at::Tensor& sin) {
  return takes({&x, &cos, &sin}) && cos.scalar_type() == wide_type(x) &&
         sin.scalar_type() == wide_type(x);
}

QueriesAndKeys rotary(const at::Tensor& q,
                      const at::Tensor& k,
                      const at::Tensor& cos,
                      const at::Tensor& sin) {
  const variable_list out = RotaryNode::apply(q, k, cos.contiguous(), sin.contiguous());
  return {out[0], out[1]};
}

Normed rms_norm(const at::Tensor& x, const at::Tensor& weight, double eps) {
  const variable_list out = NormNode::apply(x, weight.contiguous(), eps);
  return {out[0], out[1]};
}

at::Tensor swiglu(const at::Tensor& gate, const at::Tensor& up) {
  const bool joint = are_side_by_side({gate, up});
  return SwigluNode::apply(joint ? gate : gate.contiguous(), joint ? up : up.contiguous());
}

at::Tensor cross_entropy_sum(const at::Tensor& logits, const at::Tensor& targets) {
  const at::Tensor rows = logits.flatten(0, -2);
  const bool regular = has_regular_rows(rows, rows.size(1));
  return CrossEntropyNode::apply(regular ? rows : rows.contiguous(),
                                 targets.flatten().contiguous());
}

}  // namespace yoke::ops::device
