// The gradients of one rank: a contiguous buffer in forward order in which they are accumulated,
// and their reduction over the data ranks, bucket by bucket.
#pragma once

#include <vector>

#include "plugins/nanotron_compat/comms.hpp"
#include "plugins/nanotron_compat/layout.hpp"
#include "sdk/compat/gradient_buffer.hpp"

namespace yoke::nanotron_compat {

// How buckets are summed over the data ranks.
enum class Reduction {
  kSum,          // the loss is per token: gradients are parts of a sum
  kAverage,      // the collective divides, as in nanotron with accumulate_grad_in_fp32
  kDivideFirst,  // a rank divides its gradients before they are summed, as PyTorch's DDP does
};

// One step consists of begin_step(), then add() for each gradient that the model reports, then
// finish(). One thread at a time.
class Gradients {
 public:
  // options: dtype and device of the buffer. The model, the layout and the comms must outlive the
  // gradients.
  Gradients(const YokeModelSummary& model,
            const Layout& layout,
            const Comms& comms,
            Reduction reduction,
            at::TensorOptions options);

  void begin_step(uint64_t micros);  // micros: number of micro-batches
  // Adds the gradient from one block and micro-batch; undefined = zero. The last ones start
  // reductions, which is collective.
  void add(int64_t param, const at::Tensor& gradient) { buffer_.add(param, gradient); }
  // Completes the reductions: all() is then equal on all ranks with the same
  // part. Collective.
  void finish();

  const at::Tensor& all() const { return buffer_.all(); }
  int64_t bytes() const { return buffer_.bytes(); }

 private:
  void reduce(int64_t bucket);

  const Layout& layout_;
  const Comms& comms_;
  const Reduction reduction_;
  compat::GradientBuffer buffer_;
  std::vector<Work> works_;  // reduction of each bucket
};

}  // namespace yoke::nanotron_compat
