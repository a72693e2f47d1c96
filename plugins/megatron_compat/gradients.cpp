// Micro-batches only add to the buffer. During the last one a bucket is complete when every block
// that uses one of its parameters has reported a gradient, and its reduction starts at once if
// overlap_grad_reduce is set, else after the backward. Every rank runs the same blocks in the same
// order, so all ranks start the same reductions in the same order.
//
// With several instances of the distributed optimizer a bucket is reduced twice: scattered over the
// shards of an instance, then summed over the instances. The second sum needs the result of the
// first, and starts when the next bucket is complete, so that the backward never waits for a
// reduction that has just begun.
#include "plugins/megatron_compat/gradients.hpp"

#include <ATen/ATen.h>

#include "yoke/text.hpp"

namespace yoke::megatron_compat {

Gradients::Gradients(const YokeModelSummary& model,
                     const Layout& layout,
                     const Comms& comms,
                     const Rules& rules,
                     at::TensorOptions options)
    : layout_(layout),
      comms_(comms),
      rules_(rules),
      buffer_(at::zeros({layout.size()}, options)),  // padding stays zero
      of_param_(model.num_params),
      blocks_(model.num_params, 0),
      is_first_(model.num_params, true),
      missing_(layout.buckets().size()),
      works_(layout.buckets().size()) {
  for (uint64_t p = 0; p < model.num_params; ++p) {
    const YokeParameter& param = *model.params[p];
    if (layout.offset(static_cast<int64_t>(p)) < 0) continue;
    of_param_[p] =
        buffer_.narrow(0, layout.offset(static_cast<int64_t>(p)), numel(param.shape, param.ndim));
  }
  for (uint64_t b = 0; b < model.num_blocks; ++b) {
    const YokeBlock& block = *model.blocks[b];
    for (uint64_t i = 0; i < block.num_params; ++i) ++blocks_[block.params[i]];
  }
}

void Gradients::begin_step() {
  is_first_.assign(is_first_.size(), true);
  unfinished_ = -1;
  for (Work& work : works_) work = Work();  // left over from a step that failed
}

void Gradients::begin_micro(bool last) {
  is_last_ = last;
  missing_.assign(missing_.size(), 0);
  for (const Slot& slot : layout_.slots()) {
    for (const int64_t p : slot.params) missing_[slot.bucket] += blocks_[p];
  }
}

void Gradients::add(int64_t param, const YokeTensor& gradient) {
  if (param < 0 || param >= static_cast<int64_t>(of_param_.size()) || !of_param_[param].defined())
    throw Error(YOKE_INTERNAL, concat("got a gradient of parameter ", param, ", which has none"));
  const at::Tensor& sum = of_param_[param];
  const at::Tensor share = borrow(gradient).view({-1});
  if (is_first_[param]) {
    sum.copy_(share);
  } else {
    sum.add_(share);
  }
  is_first_[param] = false;
  const int64_t b = layout_.bucket_of(param);
  if (--missing_[b] == 0 && is_last_ && rules_.overlap) reduce(b);
}

void Gradients::reduce(int64_t b) {
  const Bucket& where = layout_.buckets()[b];
  const at::Tensor whole = buffer_.narrow(0, where.begin, where.size);
  if (rules_.scale != 1) whole.mul_(rules_.scale);
  if (comms_.reduce.size() == 1) {
    works_[b] = comms_.instances.all_reduce(span(whole), rules_.average ? YOKE_AVG : YOKE_SUM);
    return;
  }
  works_[b] = comms_.reduce.reduce_scatter(
      span(shard(b)), ConstSpan(span(whole)), rules_.average ? YOKE_AVG : YOKE_SUM);
  if (comms_.instances.size() == 1) return;
  if (unfinished_ >= 0) reduce_over_instances(unfinished_);
  unfinished_ = b;
}

void Gradients::reduce_over_instances(int64_t b) {
  works_[b].wait();
  works_[b] = comms_.instances.all_reduce(span(shard(b)));
}

void Gradients::finish() {
  for (size_t b = 0; b < works_.size(); ++b) {
    if (!rules_.overlap) reduce(static_cast<int64_t>(b));
  }
  if (unfinished_ >= 0) reduce_over_instances(unfinished_);
  unfinished_ = -1;
  for (Work& work : works_) work.wait();
}

at::Tensor Gradients::shard(int64_t b) const {
  const Bucket where = layout_.shard(b, comms_.reduce.rank());
  return buffer_.narrow(0, where.begin, where.size);
}

}  // namespace yoke::megatron_compat
