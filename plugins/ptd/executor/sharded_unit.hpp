// The parameters and gradients of one unit on this rank. The shard is permanent; the whole
// (gathered) buffers have memory only during parts of a step. Collectives use these buffers
// directly: an all-gather writes the whole parameter buffer, into which the model's parameters
// point. A reduce-scatter reads the whole gradient buffer, to which the gradients of backward are
// added.
//
// If the compute type differs from the type of the master copies, the shard is cast before each
// all-gather. With a single shard there is no gather, and the cast happens at the start of a
// step.
#pragma once

#include <ATen/core/Tensor.h>

#include <vector>

#include "plugins/ptd/collectives/comm.hpp"
#include "plugins/ptd/executor/flat_buffer.hpp"
#include "plugins/ptd/schedule/flat_layout.hpp"

namespace yoke::ptd {

// Each step starts with begin_step(); after that the schedule decides the order of calls. The
// checker has checked that order, so this class does not check it again. Used by one thread at a
// time; the start_... functions are collective over their communicator.
class ShardedUnit {
 public:
  struct Parts {
    std::vector<at::Tensor> params;  // parameters of the model, in the order of FlatLayout::slots
    at::Tensor param_shard;          // [shard_numel], master copies of this rank's elements
    at::Tensor grad_shard;           // [shard_numel], in the reduce type; undefined if frozen
  };

  // The pool must outlive the unit.
  ShardedUnit(const FlatLayout& layout, Parts parts, int shards, BufferPool& pool);
  ShardedUnit(ShardedUnit&&) = default;
  ~ShardedUnit();  // the model's parameters have no memory afterwards

  void begin_step();

  void start_unshard(const Comm& comm);
  void finish_unshard();  // binds the parameters to the gathered buffer
  void reshard();         // unbinds them and releases the buffer

  // Adds the .grad of a parameter to the gradient buffer and clears it. Without a .grad it does
  // nothing: the gradient of a parameter on which the loss does not depend is zero.
  void collect_gradient(size_t slot);
  // Reduces the whole gradient buffer, which holds one micro-batch or all of them, into the
  // gradient shard.
  void start_reduce(const Comm& comm);
  void finish_reduce();
  // Sums the gradient shard over the replicas, in place.
  void start_all_reduce(const Comm& comm);
  void finish_all_reduce() { work_.wait(); }
  // Call it after all backwards of a step. The gradient shard is valid afterwards even if no
  // reduction produced it.
  void complete_gradients();

  // Returns the bytes of parameters that are kept in the compute type, in addition to the master
  // copies.
  int64_t copy_bytes() const;

  // Returns true if no collective is in flight.
  bool idle() const { return !gathering_.pending() && !work_.pending(); }
  // Releases what a failed step still holds. May be called only if idle().
  void abandon_step();

 private:
  void bind_leaves(void* base);
  void open_gradients();
  void zero_unwritten();

  int shards_;
  std::vector<FlatLayout::Slot> slots_;
  std::vector<at::Tensor> params_of_model_;
  std::vector<at::Tensor> leaves_;  // local tensors of params_of_model_; the same tensors if plain
  at::Tensor param_shard_, grad_shard_;
  bool casts_;          // the type of the leaves differs from that of the master copies
  FlatBuffer params_;   // whole parameters, in the compute type
  FlatBuffer cast_;     // the shard in the compute type, during a gather; empty without casts_
  FlatBuffer grads_;    // whole gradients
  FlatBuffer partial_;  // a reduced micro-batch, before it is added to the gradient shard
  std::vector<at::Tensor> grad_views_;  // views of grads_, by slot, with the shapes of the leaves
  std::vector<at::Tensor> gaps_;        // views of grads_ that no parameter covers
  std::vector<bool> written_;           // slots whose gradient view holds a gradient
  bool grads_open_ = false;             // gaps are zero and written_ is valid
  bool shard_written_ = false;          // the gradient shard holds a micro-batch of this step
  Work gathering_, work_;
};

}  // namespace yoke::ptd
