// Autograd nodes around the kernels of core/cuda, for operators that are wasteful when composed of
// ATen operators:
//
//   rotary         cat() and four products read and write x several times; one kernel does it once.
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
#include "core/kernels/ops.hpp"

namespace yoke::ops::device {
namespace {

static_assert(kNoTarget == kIgnoredTarget);

using torch::autograd::AutogradContext;
using torch::autograd::variable_list;

struct RotaryNode : torch::autograd::Function<RotaryNode> {
  static at::Tensor turned(const at::Tensor& x,
                           const at::Tensor& cos,
                           const at::Tensor& sin,
                           double sign) {
    const at::Tensor from = x.contiguous(), to = at::empty_like(from);
    cuda_runtime().rotary(to, from, cos, sin, sign);
    return to;
  }
  static at::Tensor forward(AutogradContext* ctx,
                            const at::Tensor& x,
                            const at::Tensor& cos,
                            const at::Tensor& sin) {
    ctx->save_for_backward({cos, sin});
    return turned(x, cos, sin, 1);
  }
  static variable_list backward(AutogradContext* ctx, variable_list dy) {
    const variable_list saved = ctx->get_saved_variables();
    return {turned(dy[0], saved[0], saved[1], -1), at::Tensor(), at::Tensor()};
  }
};

struct SwigluNode : torch::autograd::Function<SwigluNode> {
  static at::Tensor forward(AutogradContext* ctx, const at::Tensor& gate, const at::Tensor& up) {
    ctx->save_for_backward({gate, up});
    const at::Tensor out = at::empty_like(gate);
    cuda_runtime().swiglu(out, gate, up);
    return out;
  }
  static variable_list backward(AutogradContext* ctx, variable_list dy) {
    const variable_list saved = ctx->get_saved_variables();
    const at::Tensor &gate = saved[0], &up = saved[1];
    const at::Tensor dgate = at::empty_like(gate), dup = at::empty_like(up);
    cuda_runtime().swiglu_backward(dgate, dup, gate, up, dy[0].contiguous());
    return {dgate, dup};
  }
};

struct CrossEntropyNode : torch::autograd::Function<CrossEntropyNode> {
  static at::Tensor forward(AutogradContext* ctx,
                            const at::Tensor& logits,
                            const at::Tensor& targets) {
    const bool wide = logits.scalar_type() == at::kDouble;
    const auto options = logits.options().dtype(wide ? at::kDouble : at::kFloat);
    const at::Tensor losses = at::empty({logits.size(0)}, options), lse = at::empty_like(losses);
    cuda_runtime().cross_entropy(losses, lse, logits, targets);
    ctx->save_for_backward({logits, targets, lse});
    return losses.sum();
  }
  static variable_list backward(AutogradContext* ctx, variable_list dy) {
    const variable_list saved = ctx->get_saved_variables();
    const at::Tensor gradient = saved[0].detach();  // the memory of the logits
    cuda_runtime().cross_entropy_backward(gradient, saved[1], saved[2], dy[0].contiguous());
    return {gradient, at::Tensor()};
  }
};

}  // namespace

bool takes(std::initializer_list<const at::Tensor*> tensors) {
  return std::all_of(tensors.begin(), tensors.end(), [](const at::Tensor* t) {
    return t->is_cuda() && t->has_storage();
  });
}

bool rotary_takes(const at::Tensor& x, const at::Tensor& cos, const at::Tensor& sin) {
  const at::ScalarType wide = x.scalar_type() == at::kDouble ? at::kDouble : at::kFloat;
  return takes({&x, &cos, &sin}) && cos.scalar_type() == wide && sin.scalar_type() == wide;
}

at::Tensor rotary(const at::Tensor& x, const at::Tensor& cos, const at::Tensor& sin) {
  return RotaryNode::apply(x, cos.contiguous(), sin.contiguous());
}

at::Tensor swiglu(const at::Tensor& gate, const at::Tensor& up) {
  return SwigluNode::apply(gate.contiguous(), up.contiguous());
}

at::Tensor cross_entropy_sum(const at::Tensor& logits, const at::Tensor& targets) {
  return CrossEntropyNode::apply(logits.flatten(0, -2).contiguous(),
                                 targets.flatten().contiguous());
}

}  // namespace yoke::ops::device
