// A bucket is complete when every block that uses one of its parameters has reported a gradient for
// every micro-batch. Data ranks run the same blocks in the same order, so buckets are complete in
// the same order on all of them.
#include "sdk/compat/gradient_buffer.hpp"

#include <ATen/ATen.h>

#include <utility>

#include "yoke/text.hpp"

namespace yoke::compat {

GradientBuffer::GradientBuffer(const YokeModelSummary& model,
                               const FlatLayout& layout,
                               at::TensorOptions options,
                               size_t buckets,
                               std::function<void(int64_t bucket)> on_complete)
    : layout_(layout),
      on_complete_(std::move(on_complete)),
      buffer_(at::zeros({layout.size()}, options)),  // padding stays zero
      of_param_(model.num_params),
      blocks_(model.num_params, 0),
      is_first_(model.num_params, true),
      missing_(buckets) {
  for (int64_t p = 0; p < static_cast<int64_t>(model.num_params); ++p) {
    if (layout.offset(p) < 0) continue;
    of_param_[p] = part(layout.offset(p), elements(model, p));
  }
  for (uint64_t b = 0; b < model.num_blocks; ++b) {
    const YokeBlock& block = *model.blocks[b];
    for (uint64_t i = 0; i < block.num_params; ++i) ++blocks_[block.params[i]];
  }
}

void GradientBuffer::begin_step(uint64_t micros) {
  is_first_.assign(is_first_.size(), true);
  missing_.assign(missing_.size(), 0);
  for (const Slot& slot : layout_.slots()) {
    for (const int64_t p : slot.params)
      missing_[slot.bucket] += blocks_[p] * static_cast<int64_t>(micros);
  }
}

void GradientBuffer::add(int64_t param, const at::Tensor& gradient) {
  if (param < 0 || param >= static_cast<int64_t>(of_param_.size()) || !of_param_[param].defined())
    throw Error(YOKE_INTERNAL, concat("got a gradient of parameter ", param, ", which has none"));
  const at::Tensor& sum = of_param_[param];
  if (!gradient.defined()) {
    if (is_first_[param]) sum.zero_();
  } else if (is_first_[param]) {
    sum.copy_(gradient.reshape({-1}));
  } else {
    sum.add_(gradient.reshape({-1}));
  }
  is_first_[param] = false;
  const int64_t b = layout_.bucket_of(param);
  if (--missing_[b] == 0) on_complete_(b);
}

}  // namespace yoke::compat
