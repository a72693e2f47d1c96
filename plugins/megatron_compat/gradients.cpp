// When a bucket is complete during the last micro-batch, its reduction starts at once if
// overlap_grad_reduce is set, else after the backward. All ranks complete buckets in the same
// order, so all ranks start the same reductions in the same order.
//
// With several instances of the distributed optimizer a bucket is reduced twice: scattered over the
// shards of an instance, then summed over the instances. The second sum needs the result of the
// first, and starts when the next bucket is complete, so that the backward never waits for a
// reduction that has just begun.
#include "plugins/megatron_compat/gradients.hpp"

#include <ATen/ATen.h>

namespace yoke::megatron_compat {

Gradients::Gradients(const YokeModelSummary& model,
                     const Layout& layout,
                     const Comms& comms,
                     const Rules& rules,
                     at::TensorOptions options)
    : layout_(layout),
      comms_(comms),
      rules_(rules),
      buffer_(model,
              layout,
              options,
              layout.buckets().size(),
              [this](int64_t b) {
                if (rules_.overlap) reduce(b);
              }),
      works_(layout.buckets().size()) {}

void Gradients::begin_step(uint64_t micros) {
  buffer_.begin_step(micros);
  unfinished_ = -1;
  for (Work& work : works_) work = Work();  // left over from a step that failed
}

void Gradients::reduce(int64_t b) {
  const Bucket& where = layout_.buckets()[b];
  const at::Tensor whole = buffer_.part(where.begin, where.size);
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
  return buffer_.part(where.begin, where.size);
}

}  // namespace yoke::megatron_compat
