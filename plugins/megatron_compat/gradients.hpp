// The gradients of one rank: a contiguous buffer in which they are accumulated, and their reduction
// over the data ranks, bucket by bucket.
#pragma once

#include <ATen/core/Tensor.h>

#include <vector>

#include "plugins/megatron_compat/comms.hpp"
#include "plugins/megatron_compat/layout.hpp"
#include "sdk/compat/gradient_buffer.hpp"

namespace yoke::megatron_compat {

// One step consists of begin_step(), then add() for each gradient that the model reports, then
// finish(). One thread at a time.
class Gradients {
 public:
  // How the sums over ranks are made. scale: by which a bucket is multiplied before it is reduced.
  struct Rules {
    bool overlap = false;  // whether a bucket is reduced as soon as its last gradient is complete
    bool average = false;  // whether the collective divides by the number of ranks
    double scale = 1;
  };
  // options: dtype and device of the buffer. The model, the layout and the comms must outlive the
  // gradients.
  Gradients(const YokeModelSummary& model,
            const Layout& layout,
            const Comms& comms,
            const Rules& rules,
            at::TensorOptions options);

  void begin_step(uint64_t micros);  // micros: number of micro-batches
  // Adds the gradient from one block and micro-batch; undefined = zero. The last ones start
  // reductions, which is collective.
  void add(int64_t param, const at::Tensor& gradient) { buffer_.add(param, gradient); }
  // Completes the reductions: in the shards of this rank, all() then holds the sum or the mean over
  // the data ranks, and the sum over cp. Collective.
  void finish();

  // Returns the whole buffer.
  const at::Tensor& all() const { return buffer_.all(); }
  int64_t bytes() const { return buffer_.bytes(); }

 private:
  void reduce(int64_t b);
  void reduce_over_instances(int64_t b);
  at::Tensor shard(int64_t b) const;

  const Layout& layout_;
  const Comms& comms_;
  const Rules rules_;
  compat::GradientBuffer buffer_;
  std::vector<Work> works_;  // reduction of each bucket over the shards, or over all ranks
  int64_t unfinished_ = -1;  // bucket whose reduction over instances has not begun; -1: none
};

}  // namespace yoke::megatron_compat
