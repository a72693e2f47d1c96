// The operators that work on rows or single elements, as autograd nodes. Each node splits its rows
// between threads. Where a gradient is a sum over rows (the weight of RMSNorm), each of a fixed
// number of parts has its own sum, and these are added in order: the result has the same bits with
// any number of threads. The nodes save for the backward:
//
//   embedding   the ids                  rms_norm   x, weight, and 1 / rms of each row
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

}  // namespace

at::Tensor embedding(const at::Tensor& weight, const at::Tensor& ids) {
  return EmbeddingNode::apply(weight, ids);
}

Normed rms_norm(const at::Tensor& x, const at::Tensor& weight, double eps) {
  const variable_list out = RmsNormNode::apply(x, weight.contiguous(), eps);
  return {out[0], out[1]};
}

}  // namespace yoke::ops::fused
