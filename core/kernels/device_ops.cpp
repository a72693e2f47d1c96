// On a device, three operators are wasteful when composed of ATen operators:
//
//   rotary         cat() and four products read and write x several times; one kernel does it once.
//   swiglu         autograd saves silu(gate) besides gate and up; computing it again is cheaper
//                  than reading it.
//   cross_entropy  log_softmax makes an fp32 copy of the logits, the largest tensor of a model.
//                  Here the rows are processed in parts, and the gradient overwrites the logits.
//
// The backward of cross entropy recomputes softmax = exp(logits - lse), where lse is the
// log-sum-exp of a row. Nothing here reads a value on the host, so a step can be recorded as a CUDA
// graph.
#include "core/kernels/device_ops.hpp"

#include <ATen/ATen.h>
#include <torch/csrc/autograd/custom_function.h>

#include <algorithm>

#include "core/cuda/device_runtime.hpp"
#include "core/kernels/ops.hpp"

namespace yoke::ops::device {
namespace {

using torch::autograd::AutogradContext;
using torch::autograd::variable_list;

struct RotaryNode : torch::autograd::Function<RotaryNode> {
  static at::Tensor turned(const at::Tensor& x,
                           const at::Tensor& cos,
                           const at::Tensor& sin,
                           float sign) {
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
    return at::silu(gate).mul_(up);
  }
  static variable_list backward(AutogradContext* ctx, variable_list dy) {
    const variable_list saved = ctx->get_saved_variables();
    const at::Tensor &gate = saved[0], &up = saved[1];
    return {at::silu_backward(dy[0] * up, gate), at::silu(gate).mul_(dy[0])};
  }
};

// The rows of logits [N, V] with their targets, divided into parts of a few rows.
struct RowParts {
  RowParts(const at::Tensor& logits, const at::Tensor& targets, int64_t most_elements)
      : most(std::max<int64_t>(1, most_elements / logits.size(-1))),
        rows(logits.flatten(0, -2)),
        ignored(targets.flatten().eq(kIgnoredTarget)),
        index(targets.flatten().clamp_min(0).unsqueeze(1)),
        wide(rows.scalar_type() == at::kDouble ? at::kDouble : at::kFloat) {}

  // Calls f(rows, ignored, index, begin) for each part, where begin is the number of its first row.
  template <class F>
  void each(F&& f) const {
    for (int64_t begin = 0; begin < rows.size(0); begin += most) {
      const int64_t n = std::min(most, rows.size(0) - begin);
      f(rows.narrow(0, begin, n), ignored.narrow(0, begin, n), index.narrow(0, begin, n), begin);
    }
  }

  const int64_t most;   // rows per part
  at::Tensor rows;      // [N, V]
  at::Tensor ignored;   // [N], bool: the row has no target
  at::Tensor index;     // [N, 1], column of the target; 0 in ignored rows
  at::ScalarType wide;  // type of the computations: fp64 for fp64, otherwise fp32
};

struct CrossEntropyNode : torch::autograd::Function<CrossEntropyNode> {
  static at::Tensor forward(AutogradContext* ctx,
                            const at::Tensor& logits,
                            const at::Tensor& targets,
                            int64_t most) {
    const RowParts parts(logits, targets, most);
    const auto options = logits.options().dtype(parts.wide);
    at::Tensor loss = at::zeros({}, options), lse = at::empty({parts.rows.size(0), 1}, options);
    parts.each([&](const auto& rows, const auto& ignored, const auto& index, int64_t begin) {
      const at::Tensor log_p = at::log_softmax(rows, -1, parts.wide).gather(1, index);
      // log p = x - lse at the target gives lse without another reduction over the row.
      lse.narrow(0, begin, rows.size(0)).copy_(rows.gather(1, index).to(parts.wide) - log_p);
      loss.sub_(log_p.squeeze(1).masked_fill(ignored, 0).sum());
    });
    ctx->save_for_backward({logits, targets, lse});
    ctx->saved_data["most"] = most;
    return loss;
  }

  static variable_list backward(AutogradContext* ctx, variable_list dy) {
    const variable_list saved = ctx->get_saved_variables();
    at::Tensor gradient = saved[0].detach();  // the memory of the logits
    const RowParts parts(gradient, saved[1], ctx->saved_data["most"].toInt());
    parts.each([&](const at::Tensor& rows, const auto& ignored, const auto& index, int64_t begin) {
      at::Tensor p = rows.to(parts.wide, /*non_blocking=*/false, /*copy=*/true);
      p.sub_(saved[2].narrow(0, begin, rows.size(0))).exp_();
      // (softmax - onehot) * dy, and 0 in ignored rows.
      p.scatter_add_(1, index, at::full_like(index, -1, p.options()));
      p.mul_(dy[0]).masked_fill_(ignored.unsqueeze(1), 0);
      rows.copy_(p);
    });
    return {gradient, at::Tensor(), at::Tensor()};
  }
};

}  // namespace

bool takes(std::initializer_list<const at::Tensor*> tensors) {
  return std::all_of(tensors.begin(), tensors.end(), [](const at::Tensor* t) {
    return t->is_cuda() && t->has_storage();
  });
}

at::Tensor rotary(const at::Tensor& x, const at::Tensor& cos, const at::Tensor& sin) {
  return RotaryNode::apply(x, cos.contiguous(), sin.contiguous());
}

at::Tensor swiglu(const at::Tensor& gate, const at::Tensor& up) {
  return SwigluNode::apply(gate, up);
}

at::Tensor cross_entropy_sum(const at::Tensor& logits, const at::Tensor& targets, int64_t most) {
  return CrossEntropyNode::apply(logits.contiguous(), targets, most);
}

}  // namespace yoke::ops::device
