// Causal attention as one node. It saves q, k, v, the output and lse, the log-sum-exp of each row
// of scores; the formulas are in cpu_attention.hpp. The pairs (sequence, kv head) are divided among
// the threads. With smaller units, gradients would have to be summed across threads, because the
// query heads that share a kv head add to the same dk and dv.
#include "core/kernels/fused_support.hpp"

namespace yoke::ops::fused {
namespace {

AttentionShape attention_shape(const at::Tensor& q, const at::Tensor& k, int64_t window) {
  return {q.size(0), q.size(1), q.size(2), k.size(2), q.size(3), window};
}

// Returns the numbers of a contiguous tensor; NULL if it is undefined.
const int64_t* rows_of(const at::Tensor& starts) {
  return starts.defined() ? starts.const_data_ptr<int64_t>() : nullptr;
}

struct AttentionNode : torch::autograd::Function<AttentionNode> {
  // Runs `kernel` over all pairs. They are independent of each other, so any split over threads
  // gives the same bits.
  template <class T, class Kernel>
  static void run(const AttentionShape& s,
                  const at::TensorOptions& wide,
                  Kernel kernel,
                  const AttentionData<T>& data) {
    // The cost of a pair, as the number of elements that a row kernel processes in the same time.
    const int64_t work = s.seq_len * s.seq_len * s.head_dim * (s.heads / s.kv_heads) / 16;
    parallel_for(s.batch * s.kv_heads,
                 grain_of(std::max<int64_t>(1, work)),
                 [&](int64_t begin, int64_t end) {
                   const at::Tensor scratch =
                       at::empty({cpu_kernels_of<T>().attention_scratch(s)}, wide);
                   kernel(s, begin, end, data, ptr<Wide<T>>(scratch));
                 });
  }

  static at::Tensor forward(AutogradContext* ctx,
                            const at::Tensor& q,
                            const at::Tensor& k,
                            const at::Tensor& v,
                            int64_t window,
                            const std::optional<at::Tensor>& starts) {
    const at::Tensor qc = q.contiguous(), kc = k.contiguous(), vc = v.contiguous();
    const AttentionShape shape = attention_shape(qc, kc, window);
    const auto options = qc.options().dtype(wide_type(qc));
    at::Tensor out =
        at::empty({shape.batch, shape.seq_len, shape.heads * shape.head_dim}, qc.options());
    const at::Tensor lse = at::empty({shape.batch, shape.heads, shape.seq_len}, options);
    dispatch(qc.scalar_type(), [&](auto* tag) {
      using T = std::remove_pointer_t<decltype(tag)>;
      run<T>(shape,
             options,
             cpu_kernels_of<T>().attention_forward,
             {.q = cptr<T>(qc),
              .k = cptr<T>(kc),
              .v = cptr<T>(vc),
              .starts = rows_of(starts.value_or(at::Tensor())),
              .out = ptr<T>(out),
              .lse = ptr<Wide<T>>(lse)});
    });
    ctx->save_for_backward({qc, kc, vc, out, lse, starts.value_or(at::Tensor())});
    ctx->saved_data["window"] = window;
    return out;
  }

  static variable_list backward(AutogradContext* ctx, variable_list dy) {
    const variable_list saved = ctx->get_saved_variables();
    const at::Tensor &q = saved[0], &k = saved[1], &v = saved[2], &out = saved[3], &lse = saved[4];
    const at::Tensor dout = dy[0].contiguous();
    const at::Tensor dq = at::empty_like(q), dk = at::empty_like(k), dv = at::empty_like(v);
    const AttentionShape shape = attention_shape(q, k, ctx->saved_data["window"].toInt());
    dispatch(q.scalar_type(), [&](auto* tag) {
      using T = std::remove_pointer_t<decltype(tag)>;
      run<T>(shape,
             lse.options(),
             cpu_kernels_of<T>().attention_backward,
             {.q = cptr<T>(q),
              .k = cptr<T>(k),
              .v = cptr<T>(v),
              .starts = rows_of(saved[5]),
              .out = ptr<T>(out),
              .lse = ptr<Wide<T>>(lse),
              .dout = cptr<T>(dout),
              .dq = ptr<T>(dq),
              .dk = ptr<T>(dk),
              .dv = ptr<T>(dv)});
    });
    return {dq, dk, dv, at::Tensor(), at::Tensor()};
  }
};

}  // namespace

at::Tensor causal_attention(const at::Tensor& q,
                            const at::Tensor& k,
                            const at::Tensor& v,
                            int64_t window,
                            const at::Tensor& starts) {
  return AttentionNode::apply(
      q, k, v, window, starts.defined() ? std::optional(starts.contiguous()) : std::nullopt);
}

}  // namespace yoke::ops::fused
