// The gradients of one rank in a contiguous buffer, in which the micro-batches of a step are added.
#pragma once

#include <ATen/core/Tensor.h>

#include <functional>
#include <vector>

#include "sdk/compat/flat_layout.hpp"
#include "yoke/torch.hpp"

namespace yoke::compat {

// One step consists of begin_step(), then add() for each gradient that the model reports. The
// backwards of several micro-batches may take turns, as in a pipeline. One thread at a time;
// nothing here communicates.
class GradientBuffer {
 public:
  // options: dtype and device of the buffer. buckets: their number. on_complete: called when the
  // last gradient of a bucket in a step has been added. The model and the layout must outlive the
  // buffer.
  GradientBuffer(const YokeModelSummary& model,
                 const FlatLayout& layout,
                 at::TensorOptions options,
                 size_t buckets,
                 std::function<void(int64_t bucket)> on_complete);

  void begin_step(uint64_t micros);  // micros: number of micro-batches
  // Adds the gradient of a parameter from one block and micro-batch, a tensor of its shape;
  // undefined = zero. The first one of a step replaces the values of the step before.
  void add(int64_t param, const at::Tensor& gradient);

  // Returns all gradients; padding is zero.
  const at::Tensor& all() const { return buffer_; }
  at::Tensor part(int64_t begin, int64_t count) const { return buffer_.narrow(0, begin, count); }
  int64_t bytes() const { return static_cast<int64_t>(buffer_.nbytes()); }

 private:
  const FlatLayout& layout_;
  const std::function<void(int64_t bucket)> on_complete_;
  at::Tensor buffer_;                 // [layout.size()]
  std::vector<at::Tensor> of_param_;  // flat views of the buffer; undefined = frozen
  std::vector<int64_t> blocks_;       // number of blocks that report a gradient of each parameter
  std::vector<bool> is_first_;        // whether a parameter has no gradient in this step yet
  std::vector<int64_t> missing_;      // gradients of each bucket that the step still owes
};

}  // namespace yoke::compat
