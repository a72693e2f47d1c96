// The operators on two tensors that one product may have computed: the rotation of queries and
// keys, and SwiGLU of gate and up. Such tensors are side by side in one buffer, which the operators
// read as it is. They write the gradients side by side as well, so that the backward of the product
// is again one product. The nodes are the same on the CPU and on a device. They save:
//
//   rotary   the cosines and sines. The gradient is a rotation by the opposite angles.
//   swiglu   gate and up. Computing silu(gate) again is cheaper than reading it.
//
// On a device, a composition of ATen operators would read and write memory several times.
#include "core/cuda/device_runtime.hpp"
#include "core/kernels/fused_support.hpp"
#include "core/kernels/neighbours.hpp"

namespace yoke::ops::fused {
namespace {

// Returns an uninitialized contiguous tensor. at::empty_like() would keep an order of strides.
at::Tensor empty(const at::Tensor& like) {
  return at::empty(like.sizes(), like.options());
}

// Returns whether the sequences of a batch [B, S, heads, D] follow each other immediately and the
// heads of a token are contiguous.
bool has_whole_tokens(const at::Tensor& t) {
  return t.stride(3) == 1 && t.stride(2) == t.size(3) &&
         (t.size(0) == 1 || t.stride(0) == t.size(1) * t.stride(1));
}

// Returns t, or a copy. Unlike contiguous(), a copy has the usual stride also for a dim of size 1,
// from which the kernels take the distance of the tokens.
at::Tensor with_whole_tokens(const at::Tensor& t) {
  return has_whole_tokens(t) ? t : t.clone(at::MemoryFormat::Contiguous);
}

// Returns tensors of the shapes of x [B, S, heads, D] whose tokens are side by side.
variable_list tokens_side_by_side(const variable_list& x) {
  std::vector<int64_t> columns;
  for (const at::Tensor& t : x) columns.push_back(t.size(2) * t.size(3));
  variable_list out = empty_side_by_side(x[0].sizes().slice(0, 2), columns, x[0].options());
  for (size_t i = 0; i < x.size(); ++i) out[i] = out[i].view(x[i].sizes());
  return out;
}

// Writes to y, on the CPU, the tokens of x rotated by sign times their angles.
template <class T>
void rotate(const at::Tensor& y,
            const at::Tensor& x,
            const at::Tensor& cos,
            const at::Tensor& sin,
            int sign) {
  const int64_t heads = x.size(2), head_dim = x.size(3);
  parallel_for(x.size(0) * x.size(1), grain_of(heads * head_dim), [&](int64_t token, int64_t end) {
    for (; token < end; ++token) {
      const int64_t angle = token * head_dim / 2;
      cpu_kernels_of<T>().rotary(1,
                                 heads,
                                 head_dim,
                                 cptr<T>(x) + token * x.stride(1),
                                 cptr<Wide<T>>(cos) + angle,
                                 cptr<Wide<T>>(sin) + angle,
                                 static_cast<Wide<T>>(sign),
                                 ptr<T>(y) + token * y.stride(1));
    }
  });
}

struct RotaryNode : torch::autograd::Function<RotaryNode> {
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
        joint ? tokens_side_by_side(dy) : variable_list{empty(dy[0]), empty(dy[1])};
    grads = turned(std::move(dy), std::move(grads), saved[0], saved[1], -1);
    grads.resize(4);
    return grads;
  }

 private:
  // Returns `out`, to which x is written, rotated by sign times the angles.
  static variable_list turned(
      variable_list x, variable_list out, const at::Tensor& cos, const at::Tensor& sin, int sign) {
    for (at::Tensor& t : x) t = with_whole_tokens(t);
    if (runs_on(x[0].device())) {
      cuda_runtime().rotary(out, x, cos, sin, sign);
      return out;
    }
    dispatch(x[0].scalar_type(), [&](auto* tag) {
      using T = std::remove_pointer_t<decltype(tag)>;
      for (size_t i = 0; i < x.size(); ++i) rotate<T>(out[i], x[i], cos, sin, sign);
    });
    return out;
  }
};

// The rows of a tensor [..., columns] that is contiguous or has regular rows.
struct Rows {
  explicit Rows(const at::Tensor& t)
      : columns(t.size(-1)),
        count(t.numel() / columns),
        stride(t.is_contiguous() ? columns : t.stride(-2)) {}
  int64_t columns, count, stride;  // stride: elements from one row to the next
};

// The gaps between the rows of gate and up are equally large, and so are those of their gradients.
struct SwigluNode : torch::autograd::Function<SwigluNode> {
  static at::Tensor forward(AutogradContext* ctx, const at::Tensor& gate, const at::Tensor& up) {
    ctx->save_for_backward({gate, up});
    const at::Tensor y = empty(gate);
    if (runs_on(gate.device())) {
      cuda_runtime().swiglu(y, gate, up);
      return y;
    }
    const Rows in(gate);
    dispatch(gate.scalar_type(), [&](auto* tag) {
      using T = std::remove_pointer_t<decltype(tag)>;
      parallel_for(in.count, grain_of(in.columns), [&](int64_t row, int64_t end) {
        for (; row < end; ++row)
          cpu_kernels_of<T>().swiglu_forward(in.columns,
                                             cptr<T>(gate) + row * in.stride,
                                             cptr<T>(up) + row * in.stride,
                                             ptr<T>(y) + row * in.columns);
      });
    });
    return y;
  }

  static variable_list backward(AutogradContext* ctx, variable_list dy) {
    const variable_list saved = ctx->get_saved_variables();
    const at::Tensor &gate = saved[0], &up = saved[1], d = dy[0].contiguous();
    variable_list grads = are_side_by_side(saved)
                              ? empty_side_by_side(gate.sizes().slice(0, gate.dim() - 1),
                                                   {gate.size(-1), up.size(-1)},
                                                   gate.options())
                              : variable_list{empty(gate), empty(up)};
    if (runs_on(gate.device())) {
      cuda_runtime().swiglu_backward(grads[0], grads[1], gate, up, d);
      return grads;
    }
    const Rows in(gate), out(grads[0]);
    dispatch(gate.scalar_type(), [&](auto* tag) {
      using T = std::remove_pointer_t<decltype(tag)>;
      parallel_for(in.count, grain_of(in.columns), [&](int64_t row, int64_t end) {
        for (; row < end; ++row)
          cpu_kernels_of<T>().swiglu_backward(in.columns,
                                              cptr<T>(d) + row * in.columns,
                                              cptr<T>(gate) + row * in.stride,
                                              cptr<T>(up) + row * in.stride,
                                              ptr<T>(grads[0]) + row * out.stride,
                                              ptr<T>(grads[1]) + row * out.stride);
      });
    });
    return grads;
  }
};

}  // namespace

bool rotates(const at::Tensor& x, const at::Tensor& cos, const at::Tensor& sin) {
  const auto is_plain_angle = [&](const at::Tensor& t) {
    return t.scalar_type() == wide_type(x) && t.has_storage() && t.device() == x.device();
  };
  return multiplies({&x}) && is_plain_angle(cos) && is_plain_angle(sin);
}

QueriesAndKeys rotary(const at::Tensor& q,
                      const at::Tensor& k,
                      const at::Tensor& cos,
                      const at::Tensor& sin) {
  const variable_list out = RotaryNode::apply(q, k, cos.contiguous(), sin.contiguous());
  return {out[0], out[1]};
}

at::Tensor swiglu(const at::Tensor& gate, const at::Tensor& up) {
  const bool joint = are_side_by_side({gate, up});
  return SwigluNode::apply(joint ? gate : gate.contiguous(), joint ? up : up.contiguous());
}

}  // namespace yoke::ops::fused
