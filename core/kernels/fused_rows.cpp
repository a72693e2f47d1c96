// The operators that work on rows or single elements, as autograd nodes. Each node splits its rows
// between threads. Where a gradient is a sum over rows (the weight of RMSNorm), each of a fixed
// number of parts has its own sum, and these are added in order: the result has the same bits with
// any number of threads. The nodes save for the backward:
//
//   embedding   the ids                  rms_norm   x, weight, and 1 / rms of each row
//   rotary      the cosines and sines    swiglu     gate and up
#include "core/kernels/fused_support.hpp"

namespace yoke::ops::fused {
namespace {

// For 16-bit types only: adds up the gradient in fp32 and rounds once.
struct EmbeddingNode : torch::autograd::Function<EmbeddingNode> {
  static at::Tensor forward(AutogradContext* ctx, const at::Tensor& weight, const at::Tensor& ids) {
    ctx->save_for_backward({ids});
    ctx->saved_data["rows"] = weight.size(0);
    return at::embedding(weight, ids);
  }
  static variable_list backward(AutogradContext* ctx, variable_list dy) {
    const int64_t rows = ctx->saved_data["rows"].toInt();
    const at::Tensor sum = at::embedding_dense_backward(dy[0].to(at::kFloat),
                                                        ctx->get_saved_variables()[0],
                                                        rows,
                                                        /*padding_idx=*/-1,
                                                        /*scale_grad_by_freq=*/false);
    return {sum.to(dy[0].scalar_type()), at::Tensor()};
  }
};

// Returns the norm of x and x itself. If the caller uses x only through these results, both of its
// gradients arrive here, and the kernel adds them.
struct RmsNormNode : torch::autograd::Function<RmsNormNode> {
  static variable_list forward(AutogradContext* ctx,
                               const at::Tensor& x,
                               const at::Tensor& weight,
                               double eps) {
    const at::Tensor input = x.contiguous();
    const int64_t dim = input.size(-1), rows = input.numel() / dim;
    at::Tensor y = at::empty(input.sizes(), input.options());
    const at::Tensor rstd = at::empty({rows}, input.options().dtype(wide_type(input)));
    dispatch(input.scalar_type(), [&](auto* tag) {
      using T = std::remove_pointer_t<decltype(tag)>;
      parallel_for(rows, grain_of(dim), [&](int64_t begin, int64_t end) {
        cpu_kernels_of<T>().rms_forward(end - begin,
                                        dim,
                                        cptr<T>(input) + begin * dim,
                                        cptr<T>(weight),
                                        static_cast<Wide<T>>(eps),
                                        ptr<T>(y) + begin * dim,
                                        ptr<Wide<T>>(rstd) + begin);
      });
    });
    ctx->save_for_backward({input, weight, rstd});
    ctx->set_materialize_grads(false);
    return {y, x};
  }

  static variable_list backward(AutogradContext* ctx, variable_list dy) {
    const variable_list saved = ctx->get_saved_variables();
    if (!dy[0].defined()) return {dy[1], at::Tensor(), at::Tensor()};
    const at::Tensor &x = saved[0], &weight = saved[1], &rstd = saved[2], d = dy[0].contiguous();
    const at::Tensor residual = dy[1].defined() ? dy[1].contiguous() : at::Tensor();
    const int64_t dim = x.size(-1);
    const Parts parts(rstd.numel(), dim);
    const at::Tensor dx = at::empty_like(x);
    const at::Tensor dweights = at::zeros({parts.count(), dim}, rstd.options());
    dispatch(x.scalar_type(), [&](auto* tag) {
      using T = std::remove_pointer_t<decltype(tag)>;
      parts.each([&](int64_t part, int64_t first, int64_t rows) {
        cpu_kernels_of<T>().rms_backward(
            rows,
            dim,
            cptr<T>(d) + first * dim,
            cptr<T>(x) + first * dim,
            cptr<T>(weight),
            cptr<Wide<T>>(rstd) + first,
            residual.defined() ? cptr<T>(residual) + first * dim : nullptr,
            ptr<T>(dx) + first * dim,
            ptr<Wide<T>>(dweights) + part * dim);
      });
    });
    const at::Tensor dweight = parts.count() == 1 ? dweights.view({dim}) : dweights.sum(0);
    return {dx, dweight.to(weight.scalar_type()), at::Tensor()};
  }
};

// The backward of a rotation is the rotation by the opposite angle.
struct RotaryNode : torch::autograd::Function<RotaryNode> {
  static at::Tensor turn(const at::Tensor& x,
                         const at::Tensor& cos,
                         const at::Tensor& sin,
                         int sign) {
    at::Tensor y = at::empty(x.sizes(), x.options());
    dispatch(x.scalar_type(), [&](auto* tag) {
      using T = std::remove_pointer_t<decltype(tag)>;
      const int64_t token = x.size(2) * x.size(3), half = x.size(3) / 2;
      parallel_for(x.size(0) * x.size(1), grain_of(token), [&](int64_t begin, int64_t end) {
        cpu_kernels_of<T>().rotary(end - begin,
                                   x.size(2),
                                   x.size(3),
                                   cptr<T>(x) + begin * token,
                                   cptr<Wide<T>>(cos) + begin * half,
                                   cptr<Wide<T>>(sin) + begin * half,
                                   static_cast<Wide<T>>(sign),
                                   ptr<T>(y) + begin * token);
      });
    });
    return y;
  }
  static at::Tensor forward(AutogradContext* ctx,
                            const at::Tensor& x,
                            const at::Tensor& cos,
                            const at::Tensor& sin) {
    ctx->save_for_backward({cos, sin});
    return turn(x.contiguous(), cos, sin, 1);
  }
  static variable_list backward(AutogradContext* ctx, variable_list dy) {
    const variable_list saved = ctx->get_saved_variables();
    return {turn(dy[0].contiguous(), saved[0], saved[1], -1), at::Tensor(), at::Tensor()};
  }
};

struct SwigluNode : torch::autograd::Function<SwigluNode> {
  static at::Tensor forward(AutogradContext* ctx, const at::Tensor& gate, const at::Tensor& up) {
    const at::Tensor g = gate.contiguous(), u = up.contiguous();
    at::Tensor y = at::empty(g.sizes(), g.options());
    dispatch(g.scalar_type(), [&](auto* tag) {
      using T = std::remove_pointer_t<decltype(tag)>;
      parallel_for(g.numel(), kGrain, [&](int64_t i, int64_t end) {
        cpu_kernels_of<T>().swiglu_forward(end - i, cptr<T>(g) + i, cptr<T>(u) + i, ptr<T>(y) + i);
      });
    });
    ctx->save_for_backward({g, u});
    return y;
  }
  static variable_list backward(AutogradContext* ctx, variable_list dy) {
    const variable_list saved = ctx->get_saved_variables();
    const at::Tensor &g = saved[0], &u = saved[1], d = dy[0].contiguous();
    const at::Tensor dg = at::empty_like(g), du = at::empty_like(u);
    dispatch(g.scalar_type(), [&](auto* tag) {
      using T = std::remove_pointer_t<decltype(tag)>;
      parallel_for(g.numel(), kGrain, [&](int64_t i, int64_t end) {
        cpu_kernels_of<T>().swiglu_backward(end - i,
                                            cptr<T>(d) + i,
                                            cptr<T>(g) + i,
                                            cptr<T>(u) + i,
                                            ptr<T>(dg) + i,
                                            ptr<T>(du) + i);
      });
    });
    return {dg, du};
  }
};

}  // namespace

at::Tensor embedding(const at::Tensor& weight, const at::Tensor& ids) {
  return EmbeddingNode::apply(weight, ids);
}

Normed rms_norm(const at::Tensor& x, const at::Tensor& weight, double eps) {
  const variable_list out = RmsNormNode::apply(x, weight.contiguous(), eps);
  return {out[0], out[1]};
}

at::Tensor rotary(const at::Tensor& x, const at::Tensor& cos, const at::Tensor& sin) {
  return RotaryNode::apply(x, cos.contiguous(), sin.contiguous());
}

at::Tensor swiglu(const at::Tensor& gate, const at::Tensor& up) {
  return SwigluNode::apply(gate, up);
}

}  // namespace yoke::ops::fused
