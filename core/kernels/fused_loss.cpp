// Cross entropy as one node over the logits [N, V], the largest tensor of a model. The forward
// reads each row twice and keeps only lse [N], the log-sum-exp of each row, from which the backward
// recomputes the softmax: dlogits = (exp(logits - lse) - onehot(target)) * dy. The gradient
// overwrites the logits, so that no second tensor of this size is needed. The losses of each part
// of the rows are added up in double, then the parts in order, so the sum does not depend on the
// number of threads.
#include <numeric>

#include "core/kernels/fused_support.hpp"
#include "core/kernels/ops.hpp"
#include "yoke/error.hpp"
#include "yoke/text.hpp"

namespace yoke::ops::fused {
namespace {

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
    const at::Tensor gradient = saved[0].detach();  // the memory of the logits
    const at::Tensor &wanted = saved[1], &lse = saved[2];
    const int64_t vocab = gradient.size(-1);
    const double scale = dy[0].item<double>();
    dispatch(gradient.scalar_type(), [&](auto* tag) {
      using T = std::remove_pointer_t<decltype(tag)>;
      parallel_for(lse.numel(), grain_of(vocab), [&](int64_t begin, int64_t end) {
        cpu_kernels_of<T>().cross_entropy_backward(end - begin,
                                                   vocab,
                                                   ptr<T>(gradient) + begin * vocab,
                                                   cptr<int64_t>(wanted) + begin,
                                                   kIgnoredTarget,
                                                   cptr<Wide<T>>(lse) + begin,
                                                   static_cast<Wide<T>>(scale));
      });
    });
    torch::autograd::impl::bump_version(gradient);  // makes another use of the logits an error
    return {gradient, at::Tensor()};
  }
};

// Throws for a target that is out of range, with which the kernels would read outside of a row.
void check_targets(const at::Tensor& targets, int64_t vocab) {
  const at::Tensor t = targets.contiguous();
  const int64_t* ids = cptr<int64_t>(t);
  for (int64_t i = 0; i < t.numel(); ++i) {
    if (ids[i] == kIgnoredTarget || (ids[i] >= 0 && ids[i] < vocab)) continue;
    throw Error(YOKE_INVALID_ARGUMENT,
                concat("target ",
                       ids[i],
                       " at element ",
                       i,
                       "; allowed: 0 to ",
                       vocab - 1,
                       ", or -100 for no target"));
  }
}

}  // namespace

at::Tensor cross_entropy_sum(const at::Tensor& logits, const at::Tensor& targets) {
  check_targets(targets, logits.size(-1));
  return CrossEntropyNode::apply(logits, targets);
}

}  // namespace yoke::ops::fused
