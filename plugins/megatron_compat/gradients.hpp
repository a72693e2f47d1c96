// The gradients of one rank: a contiguous buffer in which they are accumulated, and their reduction
// over the data ranks, bucket by bucket.
#pragma once

#include <ATen/core/Tensor.h>

#include <vector>

#include "plugins/megatron_compat/comms.hpp"
#include "plugins/megatron_compat/layout.hpp"
#include "yoke/torch.hpp"

namespace yoke::megatron_compat {

// One step consists of begin_step(), then for each micro-batch begin_micro() and add() for each
// gradient that the model reports, then finish(). One thread at a time.
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

  void begin_step();
  // last: whether no other micro-batch of the step follows. During the last one, add() starts
  // reductions, which is collective.
  void begin_micro(bool last);
  // Adds the gradient of a parameter. The first one of a step replaces the values of the step
  // before.
  void add(int64_t param, const YokeTensor& gradient);
  // Completes the reductions: shard(b) then holds the sum over the data ranks. Collective.
  void finish();

  // Returns the part of a bucket that this rank updates: a flat view.
  at::Tensor shard(int64_t b) const;
  at::TensorOptions options() const { return buffer_.options(); }
  int64_t bytes() const { return static_cast<int64_t>(buffer_.nbytes()); }

 private:
  void reduce(int64_t b);
  void reduce_over_instances(int64_t b);

  const Layout& layout_;
  const Comms& comms_;
  const Rules rules_;
  at::Tensor buffer_;                 // [layout.size()]
  std::vector<at::Tensor> of_param_;  // flat views of the buffer; undefined = frozen
  std::vector<int64_t> blocks_;       // number of blocks that report a gradient of each parameter
  std::vector<bool> is_first_;        // whether a parameter has no gradient in this step yet
  std::vector<int64_t> missing_;  // gradients of each bucket that the last micro-batch still owes
  std::vector<Work> works_;       // reduction of each bucket over the shards, or over all ranks
  int64_t unfinished_ = -1;       // bucket whose reduction over instances has not begun; -1: none
  bool is_last_ = false;
};

}  // namespace yoke::megatron_compat
