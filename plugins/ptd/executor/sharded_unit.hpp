// The parameters and gradients of one unit on this rank. The shard is permanent; the whole
// (gathered) buffers have memory only during parts of a step. Collectives use these buffers
// directly: an all-gather writes the whole parameter buffer, into which the model's parameters
// point. A reduce-scatter reads the whole gradient buffer, to which the gradients of backward are
// added.
//
// If the compute type differs from the type of the master copies, the shard is cast before each
// all-gather. With a single shard there is no gather, and the cast happens at the start of a step,
// unless the optimizer writes a copy in the compute type (Parts::copy). A unit that is gathered in
// fp8 has an Fp8Shard, which is rounded once per step.
#pragma once

#include <ATen/core/Tensor.h>

#include <map>
#include <optional>
#include <vector>

#include "plugins/ptd/executor/fp8_shard.hpp"
#include "plugins/ptd/mesh.hpp"
#include "sdk/mesh/collectives/comm.hpp"
#include "sdk/mesh/executor/flat_buffer.hpp"
#include "sdk/mesh/schedule/flat_layout.hpp"
#include "yoke/torch.hpp"

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
    at::Tensor copy;                 // [shard_numel], in the compute type; see below
    int shard = 0;                   // index of this rank's shard
    const Fp8Params* fp8 = nullptr;  // how to round to fp8 for a gather; nullptr: not in fp8
  };

  // The pool must outlive the unit.
  ShardedUnit(const FlatLayout& layout, Parts parts, int shards, DevicePool& pool);
  ShardedUnit(ShardedUnit&&) = default;
  ~ShardedUnit();  // the model's parameters have no memory afterwards

  // Gives a parameter a second gradient buffer, which is added to the first one at the end of a
  // step. Requires one shard.
  void add_second_gradient(size_t slot);

  void begin_step();

  // Returns what this rank gathers in fp8; nullptr if the unit is gathered in the compute type.
  Fp8Shard* fp8() { return fp8_ ? &*fp8_ : nullptr; }

  void start_unshard(const Comm& comm);
  void finish_unshard();  // binds the parameters to the gathered buffer
  void reshard();         // unbinds them and releases the buffer

  // Returns whether this is the parameter of a slot.
  bool has(size_t slot, const at::Tensor& param) const {
    return params_of_model_[slot].is_same(param);
  }
  // Returns the gradients of a parameter that were added up so far in this step, or since the last
  // reduction; second: those in the second buffer. Valid until the next reduction.
  GradientSums::Sum& gradient_sum(size_t slot, bool second = false);
  // Adds the .grad of a parameter to that sum, and clears it. Without a .grad it does nothing: the
  // gradient is in the sum already, or, if the loss does not depend on the parameter, zero.
  void collect_gradient(size_t slot, bool second = false);
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

  // Returns the bytes of parameters that are kept in the compute type or in fp8, in addition to the
  // master copies.
  int64_t copy_bytes() const;
  // Returns the bytes of all second gradient buffers.
  int64_t second_gradient_bytes() const;

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
  bool copied_;        // the optimizer keeps the whole parameters in the compute type
  bool casts_;         // the type of the leaves differs from that of the master copies
  FlatBuffer params_;  // whole parameters, in the compute type
  FlatBuffer cast_;    // the shard in the compute type, during a gather; unused without casts_
  std::optional<Fp8Shard> fp8_;  // the shard in fp8; empty if gathers are in the compute type
  FlatBuffer grads_;             // whole gradients
  FlatBuffer partial_;           // a reduced micro-batch, before it is added to the gradient shard
  std::vector<GradientSums::Sum> sums_;          // views of grads_, by slot
  std::map<size_t, GradientSums::Sum> seconds_;  // second gradients, by slot
  std::vector<at::Tensor> gaps_;                 // views of grads_ that no parameter covers
  bool grads_open_ = false;                      // gaps are zero, and Sum::written is valid
  bool shard_written_ = false;  // the gradient shard holds a micro-batch of this step
  Work gathering_, work_;
};

}  // namespace yoke::ptd
