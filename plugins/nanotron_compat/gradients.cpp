// In nanotron, PyTorch's DDP starts the reduction of a bucket when the last micro-batch has
// computed all of its gradients. All ranks complete buckets in the same order, so all ranks start
// the same reductions in the same order.
//
// ZeRO of nanotron reduces whole gradients as well and does not scatter them: a rank then updates
// its slices.
#include "plugins/nanotron_compat/gradients.hpp"

#include <ATen/ATen.h>

namespace yoke::nanotron_compat {

Gradients::Gradients(const YokeModelSummary& model,
                     const Layout& layout,
                     const Comms& comms,
                     Reduction reduction,
                     at::TensorOptions options)
    : layout_(layout),
      comms_(comms),
      reduction_(reduction),
      buffer_(model, layout, options, layout.buckets().size(), [this](int64_t b) { reduce(b); }),
      works_(layout.buckets().size()) {}

void Gradients::begin_step(uint64_t micros) {
  buffer_.begin_step(micros);
  for (Work& work : works_) work = Work();  // left over from a step that failed
}

void Gradients::reduce(int64_t bucket) {
  const compat::Range& where = layout_.buckets()[bucket];
  const at::Tensor whole = buffer_.part(where.begin, where.count);
  if (reduction_ == Reduction::kDivideFirst) whole.div_(comms_.data.size());
  // The collective divides by the ranks of cp as well, which have parts of the same sequences.
  const int cp = comms_.model.cp.size();
  if (reduction_ == Reduction::kAverage && cp > 1) whole.mul_(cp);
  works_[bucket] = comms_.reduce.all_reduce(
      span(whole), reduction_ == Reduction::kAverage ? YOKE_AVG : YOKE_SUM);
}

void Gradients::finish() {
  for (Work& work : works_) work.wait();
}

}  // namespace yoke::nanotron_compat
