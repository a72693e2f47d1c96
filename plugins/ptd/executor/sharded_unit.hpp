// The parameters and gradients of one unit on this rank: the shard that stays, and the whole that
// comes and goes. No copy on the way: an all-gather writes the whole buffer, into which the model's
// parameters point; a reduce-scatter reads the whole gradient buffer, into which backward adds.
// Only where the model computes in another type than the master copies is the shard cast before it
// is gathered, and a single shard, the whole, at the begin of a step.
#pragma once

#include <ATen/core/Tensor.h>

#include <vector>

#include "plugins/ptd/collectives/comm.hpp"
#include "plugins/ptd/executor/flat_buffer.hpp"
#include "plugins/ptd/schedule/flat_layout.hpp"

namespace yoke::ptd {

// Call order within a step: begin_step, then as the schedule says. The checker has proven the
// schedule, so the state is not checked again here. One thread at a time; start_... are collective.
class ShardedUnit {
 public:
  struct Parts {
    std::vector<at::Tensor> params;  // the model's, by slot of the layout
    at::Tensor param_shard;          // [shard_numel], master copies; this rank's values
    at::Tensor grad_shard;           // [shard_numel], in reduce dtype; undefined if frozen
  };

  ShardedUnit(const FlatLayout& layout, Parts parts, int shards, BufferPool& pool);
  ShardedUnit(ShardedUnit&&) = default;
  ~ShardedUnit();

  void begin_step();

  void start_unshard(const Comm& comm);
  void finish_unshard();  // binds the leaves
  void reshard();         // unbinds them

  // Takes what backward left in the .grad of a leaf, if anything: a parameter that the loss does
  // not depend on has a zero gradient.
  void collect_gradient(size_t slot);
  // The whole gradients, of one or all micro-batches.
  void start_reduce(const Comm& comm);
  void finish_reduce();
  // The gradient shard, over the replicas.
  void start_all_reduce(const Comm& comm);
  void finish_all_reduce() { work_.wait(); }
  // After all backwards of a step: the gradient shard is valid also where no reduction made it.
  void complete_gradients();

  // Bytes of parameters in the compute type that stay beside the master copies.
  int64_t copy_bytes() const;

  // No collective on its way.
  bool idle() const { return !gathering_.pending() && !work_.pending(); }
  // Frees what a failed step left behind; only if idle.
  void abandon_step();

 private:
  void bind_leaves(void* base);
  void open_gradients();
  void zero_unwritten();

  int shards_;
  std::vector<FlatLayout::Slot> slots_;
  std::vector<at::Tensor> params_of_model_;
  std::vector<at::Tensor> leaves_;  // what backs them on this rank
  at::Tensor param_shard_, grad_shard_;
  bool casts_;          // the leaves have another type than the master copies
  FlatBuffer params_;   // whole, in compute type
  FlatBuffer cast_;     // the shard in compute type while it is gathered; empty without casts_
  FlatBuffer grads_;    // whole
  FlatBuffer partial_;  // a reduced micro-batch, before it is added to the gradient shard
  std::vector<at::Tensor> grad_views_;  // of grads_, by slot, with the shapes of the leaves
  std::vector<at::Tensor> gaps_;        // of grads_, what no parameter covers
  std::vector<bool> written_;           // slots whose gradient view holds a gradient
  bool grads_open_ = false;             // gaps are zero, written_ is valid
  bool shard_written_ = false;          // the gradient shard holds a micro-batch of this step
  Work gathering_, work_;
};

}  // namespace yoke::ptd
