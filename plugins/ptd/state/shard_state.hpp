// The parameters and gradients that this rank keeps between steps: a few flat tensors in which the
// shards of all units follow each other. The optimizer and the gradient norm then need one pass
// over memory, regardless of the number of parameters.
#pragma once

#include <ATen/core/Tensor.h>

#include <vector>

#include "plugins/ptd/mesh.hpp"
#include "sdk/mesh/schedule/flat_layout.hpp"
#include "sdk/mesh/schedule/param_cut.hpp"
#include "yoke/torch.hpp"

namespace yoke::ptd {

// The element types of a run.
struct Dtypes {
  at::ScalarType compute;  // type of the model's leaves, of activations and of their gradients
  at::ScalarType master;   // type of the parameters that are updated, and of their moments
  at::ScalarType reduce;   // type of gradients while they are accumulated and reduced
};

// Owns the flat tensors; param_shard() and grad_shard() are views into them.
struct ShardState {
  struct UnitShard {
    FlatLayout layout;
    bool trainable;
    // Offset of the shard's first element in ShardState::params and grads, or in ShardState::frozen
    // if the unit is not trainable.
    int64_t begin;
  };

  // All values are zero at first. Units are in the order of the map; `shard` of `shards` is the one
  // that this rank keeps.
  ShardState(const ModelSpec& model,
             const UnitMap& map,
             int shards,
             int shard,
             Dtypes dtypes,
             at::Device device);

  at::Tensor param_shard(size_t unit) const;  // a view, [shard_numel]
  at::Tensor grad_shard(size_t unit) const;   // a view, [shard_numel]; undefined if frozen
  at::Tensor copy_shard(size_t unit) const;   // a view of copies, or undefined

  // Returns views of those spans of a flat tensor whose parameters are tp-replicated.
  std::vector<at::Tensor> tp_replicated_parts(const at::Tensor& flat) const;

  Dtypes dtypes;
  int shard;  // index of this rank's shard
  std::vector<UnitShard> units;
  std::vector<FlatSpan> spans;     // spans of params and grads, in order, without gaps
  int64_t most_tp_replicated = 0;  // tp-replicated elements of the shard that has the most
  at::Tensor params;               // master copies
  at::Tensor grads;                // reduced gradients
  at::Tensor frozen;               // parameters without gradient and optimizer state
  // The parameters of `params` in the compute type, if the optimizer writes them; else undefined.
  at::Tensor copies;
};

// Fills the shards with the model's initial values, which it requests from the host a few MiB at a
// time. cuts: one per parameter. Throws the host's Error.
void init_params(const ShardState& state,
                 const std::vector<ParamCut>& cuts,
                 const YokeModel& model);

}  // namespace yoke::ptd
