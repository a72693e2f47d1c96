#include "core/model/fused_ops.hpp"

#include <ATen/ATen.h>
#include <torch/csrc/autograd/custom_function.h>

#include <algorithm>
#include <numeric>

#include "core/model/cpu_kernels.hpp"
#include "core/model/ops.hpp"
#include "core/model/parallel.hpp"
#include "yoke/error.hpp"

namespace yoke::ops::fused {
namespace {

using torch::autograd::AutogradContext;
using torch::autograd::variable_list;

// Calls f with a null pointer of the kernels' element type.
template <class F>
auto dispatch(at::ScalarType type, F&& f) {
  switch (type) {
    case at::kDouble:
      return f(static_cast<double*>(nullptr));
    case at::kBFloat16:
      return f(static_cast<BFloat16*>(nullptr));
    default:
      return f(static_cast<float*>(nullptr));
  }
}

template <class T>
T* ptr(const at::Tensor& t) {
  return static_cast<T*>(t.data_ptr());
}
template <class T>
const T* cptr(const at::Tensor& t) {
  return static_cast<const T*>(t.const_data_ptr());
}

// Elements that are worth a thread.
constexpr int64_t kGrain = 16384;
int64_t grain_of(int64_t row) {
  return std::max<int64_t>(1, kGrain / row);
}

// Rows in at most kParts parts whose bounds do not depend on the number of threads, so that sums
// over parts have the same bits on any number of them.
struct Parts {
  static constexpr int64_t kParts = 32;
  Parts(int64_t rows, int64_t row)
      : total(rows), size(std::max(grain_of(row), (rows + kParts - 1) / kParts)) {}
  int64_t count() const { return (total + size - 1) / size; }
  // f(part, first row, number of rows)
  template <class F>
  void each(F&& f) const {
    parallel_for(count(), 1, [&](int64_t begin, int64_t end) {
      for (int64_t part = begin; part < end; ++part) {
        f(part, part * size, std::min(size, total - part * size));
      }
    });
  }
  int64_t total, size;
};

at::ScalarType wide_type(const at::Tensor& t) {
  return t.scalar_type() == at::kDouble ? at::kDouble : at::kFloat;
}

at::Tensor rows_of(const at::Tensor& t) {
  return t.view({-1, t.size(-1)});
}

std::vector<int64_t> with_last(const at::Tensor& t, int64_t last) {
  std::vector<int64_t> sizes = t.sizes().vec();
  sizes.back() = last;
  return sizes;
}

// Outputs are fresh tensors that the product is written into: a view of a product would be a second
// node.
at::Tensor product(const at::Tensor& x, const at::Tensor& weight) {
  at::Tensor out = at::empty(with_last(x, weight.size(0)), x.options());
  at::Tensor rows = rows_of(out);
  at::mm_out(rows, rows_of(x), weight.t());
  return out;
}

at::Tensor weight_grad(const at::Tensor& dy, const at::Tensor& x) {
  return at::mm(rows_of(dy).t(), rows_of(x));
}

// x times one weight after the other.
struct LinearsNode : torch::autograd::Function<LinearsNode> {
  static variable_list forward(AutogradContext* ctx, const at::Tensor& x, at::TensorList weights) {
    const at::Tensor input = x.contiguous();
    variable_list saved{input}, out;
    for (const at::Tensor& weight : weights) {
      saved.push_back(weight);
      out.push_back(product(input, weight));
    }
    ctx->save_for_backward(std::move(saved));
    return out;
  }

  static variable_list backward(AutogradContext* ctx, variable_list dy) {
    const variable_list saved = ctx->get_saved_variables();
    variable_list grads(saved.size());
    at::Tensor rows;
    for (size_t i = 0; i < dy.size(); ++i) {
      const at::Tensor dyi = dy[i].contiguous();
      if (ctx->needs_input_grad(i + 1)) grads[i + 1] = weight_grad(dyi, saved[0]);
      if (!ctx->needs_input_grad(0)) continue;
      if (i == 0) {
        grads[0] = at::empty_like(saved[0]);
        rows = rows_of(grads[0]);
        at::mm_out(rows, rows_of(dyi), saved[1]);
      } else {
        rows.addmm_(rows_of(dyi), saved[i + 1]);
      }
    }
    return grads;
  }
};

struct LinearAddNode : torch::autograd::Function<LinearAddNode> {
  static at::Tensor forward(AutogradContext* ctx,
                            const at::Tensor& residual,
                            const at::Tensor& x,
                            const at::Tensor& weight) {
    const at::Tensor input = x.contiguous();
    ctx->save_for_backward({input, weight});
    at::Tensor out = at::empty(residual.sizes(), residual.options());
    at::Tensor rows = rows_of(out);
    at::addmm_out(rows, rows_of(residual.contiguous()), rows_of(input), weight.t());
    return out;
  }

  static variable_list backward(AutogradContext* ctx, variable_list dy) {
    const variable_list saved = ctx->get_saved_variables();
    const at::Tensor d = dy[0].contiguous();
    variable_list grads(3);
    grads[0] = dy[0];
    if (ctx->needs_input_grad(1)) {
      grads[1] = at::empty_like(saved[0]);
      at::Tensor rows = rows_of(grads[1]);
      at::mm_out(rows, rows_of(d), saved[1]);
    }
    if (ctx->needs_input_grad(2)) grads[2] = weight_grad(d, saved[0]);
    return grads;
  }
};

struct RmsNormNode : torch::autograd::Function<RmsNormNode> {
  static at::Tensor forward(AutogradContext* ctx,
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
    return y;
  }

  static variable_list backward(AutogradContext* ctx, variable_list dy) {
    const variable_list saved = ctx->get_saved_variables();
    const at::Tensor &x = saved[0], &weight = saved[1], &rstd = saved[2], d = dy[0].contiguous();
    const int64_t dim = x.size(-1);
    const Parts parts(rstd.numel(), dim);
    const at::Tensor dx = at::empty_like(x);
    const at::Tensor dweights = at::zeros({parts.count(), dim}, rstd.options());
    dispatch(x.scalar_type(), [&](auto* tag) {
      using T = std::remove_pointer_t<decltype(tag)>;
      parts.each([&](int64_t part, int64_t first, int64_t rows) {
        cpu_kernels_of<T>().rms_backward(rows,
                                         dim,
                                         cptr<T>(d) + first * dim,
                                         cptr<T>(x) + first * dim,
                                         cptr<T>(weight),
                                         cptr<Wide<T>>(rstd) + first,
                                         ptr<T>(dx) + first * dim,
                                         ptr<Wide<T>>(dweights) + part * dim);
      });
    });
    const at::Tensor dweight = parts.count() == 1 ? dweights.view({dim}) : dweights.sum(0);
    return {dx, dweight.to(weight.scalar_type()), at::Tensor()};
  }
};

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

AttentionShape attention_shape(const at::Tensor& q, const at::Tensor& k) {
  return {q.size(0), q.size(1), q.size(2), k.size(2), q.size(3)};
}

struct AttentionNode : torch::autograd::Function<AttentionNode> {
  // Pairs of sequence and kv head are independent: any split over threads gives the same bits.
  template <class T, class Kernel>
  static void run(const AttentionShape& s,
                  const at::TensorOptions& wide,
                  Kernel kernel,
                  const AttentionData<T>& data) {
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
                            const at::Tensor& v) {
    const at::Tensor qc = q.contiguous(), kc = k.contiguous(), vc = v.contiguous();
    const AttentionShape shape = attention_shape(qc, kc);
    const auto options = qc.options().dtype(wide_type(qc));
    at::Tensor out =
        at::empty({shape.batch, shape.seq_len, shape.heads * shape.head_dim}, qc.options());
    const at::Tensor lse = at::empty({shape.batch, shape.heads, shape.seq_len}, options);
    dispatch(qc.scalar_type(), [&](auto* tag) {
      using T = std::remove_pointer_t<decltype(tag)>;
      run<T>(shape,
             options,
             cpu_kernels_of<T>().attention_forward,
             {cptr<T>(qc),
              cptr<T>(kc),
              cptr<T>(vc),
              ptr<T>(out),
              ptr<Wide<T>>(lse),
              nullptr,
              nullptr,
              nullptr,
              nullptr});
    });
    ctx->save_for_backward({qc, kc, vc, out, lse});
    return out;
  }

  static variable_list backward(AutogradContext* ctx, variable_list dy) {
    const variable_list saved = ctx->get_saved_variables();
    const at::Tensor &q = saved[0], &k = saved[1], &v = saved[2], &out = saved[3], &lse = saved[4];
    const at::Tensor dout = dy[0].contiguous();
    const at::Tensor dq = at::empty_like(q), dk = at::empty_like(k), dv = at::empty_like(v);
    const AttentionShape shape = attention_shape(q, k);
    dispatch(q.scalar_type(), [&](auto* tag) {
      using T = std::remove_pointer_t<decltype(tag)>;
      run<T>(shape,
             lse.options(),
             cpu_kernels_of<T>().attention_backward,
             {cptr<T>(q),
              cptr<T>(k),
              cptr<T>(v),
              ptr<T>(out),
              ptr<Wide<T>>(lse),
              cptr<T>(dout),
              ptr<T>(dq),
              ptr<T>(dk),
              ptr<T>(dv)});
    });
    return {dq, dk, dv};
  }
};

struct CrossEntropyNode : torch::autograd::Function<CrossEntropyNode> {
  static at::Tensor forward(AutogradContext* ctx,
                            const at::Tensor& logits,
                            const at::Tensor& targets) {
    const at::Tensor rows = logits.contiguous(), wanted = targets.contiguous();
    const int64_t vocab = rows.size(-1);
    const Parts parts(wanted.numel(), vocab);
    const auto options = rows.options().dtype(wide_type(rows));
    const at::Tensor lse = at::empty({wanted.numel()}, options);
    double losses[Parts::kParts] = {};
    dispatch(rows.scalar_type(), [&](auto* tag) {
      using T = std::remove_pointer_t<decltype(tag)>;
      parts.each([&](int64_t part, int64_t first, int64_t n) {
        losses[part] = cpu_kernels_of<T>().cross_entropy_forward(n,
                                                                 vocab,
                                                                 cptr<T>(rows) + first * vocab,
                                                                 cptr<int64_t>(wanted) + first,
                                                                 kIgnoredTarget,
                                                                 ptr<Wide<T>>(lse) + first);
      });
    });
    at::Tensor loss = at::full({}, std::accumulate(losses, losses + parts.count(), 0.0), options);
    ctx->save_for_backward({rows, wanted, lse});
    return loss;
  }
  static variable_list backward(AutogradContext* ctx, variable_list dy) {
    const variable_list saved = ctx->get_saved_variables();
    const at::Tensor &rows = saved[0], &wanted = saved[1], &lse = saved[2];
    const at::Tensor dlogits = at::empty_like(rows);
    const int64_t vocab = rows.size(-1);
    const double scale = dy[0].item<double>();
    dispatch(rows.scalar_type(), [&](auto* tag) {
      using T = std::remove_pointer_t<decltype(tag)>;
      parallel_for(lse.numel(), grain_of(vocab), [&](int64_t begin, int64_t end) {
        cpu_kernels_of<T>().cross_entropy_backward(end - begin,
                                                   vocab,
                                                   cptr<T>(rows) + begin * vocab,
                                                   cptr<int64_t>(wanted) + begin,
                                                   kIgnoredTarget,
                                                   cptr<Wide<T>>(lse) + begin,
                                                   static_cast<Wide<T>>(scale),
                                                   ptr<T>(dlogits) + begin * vocab);
      });
    });
    return {dlogits, at::Tensor()};
  }
};

void check_targets(const at::Tensor& targets, int64_t vocab) {
  const at::Tensor t = targets.contiguous();
  const int64_t* ids = cptr<int64_t>(t);
  for (int64_t i = 0; i < t.numel(); ++i) {
    if (ids[i] == kIgnoredTarget || (ids[i] >= 0 && ids[i] < vocab)) continue;
    throw Error(YOKE_INVALID_ARGUMENT,
                "target " + std::to_string(ids[i]) + " at element " + std::to_string(i) +
                    "; allowed: 0 to " + std::to_string(vocab - 1) + ", and -100 for none");
  }
}

}  // namespace

bool takes(std::initializer_list<const at::Tensor*> tensors) {
  const at::ScalarType type = (*tensors.begin())->scalar_type();
  if (type != at::kFloat && type != at::kDouble && type != at::kBFloat16) return false;
  for (const at::Tensor* t : tensors) {
    if (!t->is_cpu() || !t->has_storage() || t->layout() != at::kStrided ||
        t->scalar_type() != type)
      return false;
    if (t->numel() == 0) return false;
  }
  return true;
}

std::vector<at::Tensor> linears(const at::Tensor& x, const std::vector<at::Tensor>& weights) {
  return LinearsNode::apply(x, at::TensorList(weights));
}

at::Tensor linear_add(const at::Tensor& residual, const at::Tensor& x, const at::Tensor& weight) {
  return LinearAddNode::apply(residual, x, weight);
}

at::Tensor rms_norm(const at::Tensor& x, const at::Tensor& weight, double eps) {
  return RmsNormNode::apply(x, weight.contiguous(), eps);
}

at::Tensor rotary(const at::Tensor& x, const at::Tensor& cos, const at::Tensor& sin) {
  return RotaryNode::apply(x, cos.contiguous(), sin.contiguous());
}

at::Tensor swiglu(const at::Tensor& gate, const at::Tensor& up) {
  return SwigluNode::apply(gate, up);
}

at::Tensor causal_attention(const at::Tensor& q, const at::Tensor& k, const at::Tensor& v) {
  return AttentionNode::apply(q, k, v);
}

at::Tensor cross_entropy_sum(const at::Tensor& logits, const at::Tensor& targets) {
  check_targets(targets, logits.size(-1));
  return CrossEntropyNode::apply(logits, targets);
}

}  // namespace yoke::ops::fused
