// Everything that this rank keeps between steps, in a few flat tensors: the shards of all units one
// after the other. The optimizer and the norm then need one pass, whatever the number of
// parameters.
#pragma once

#include <ATen/core/Tensor.h>

#include <vector>

#include "plugins/ptd/schedule/flat_layout.hpp"
#include "plugins/ptd/schedule/param_cut.hpp"
#include "yoke/torch.hpp"

namespace yoke::ptd {

// Element types of a run.
struct Dtypes {
  at::ScalarType compute;  // of the model's leaves, activations and their gradients
  at::ScalarType master;   // of the parameters that are updated, and of their moments
  at::ScalarType reduce;   // of gradients while they are accumulated and reduced
};

struct ShardState {
  // A stretch of the flat tensors that is alike in these respects.
  struct Range {
    int64_t begin;
    int64_t count;
    bool decay;          // weight decay applies
    bool tp_replicated;  // every rank of tp, of several, has the same parameters there
  };
  // Where a unit's shard begins: in params and grads if it is trainable, else in frozen.
  struct UnitShard {
    FlatLayout layout;
    bool trainable;
    int64_t begin;
  };

  // Zeroes; units in the order of the map.
  ShardState(const ModelSpec& model,
             const UnitMap& map,
             int shards,
             int shard,
             Dtypes dtypes,
             at::Device device);

  at::Tensor param_shard(size_t unit) const;  // a view
  at::Tensor grad_shard(size_t unit) const;   // a view; undefined if frozen

  // The parts of a flat tensor that tensor parallelism does not cut.
  std::vector<at::Tensor> tp_replicated_parts(const at::Tensor& flat) const;

  int shard;  // which one this is
  std::vector<UnitShard> units;
  std::vector<Range> ranges;       // of params and grads
  int64_t most_tp_replicated = 0;  // elements in replicated ranges, of the shard that has most
  at::Tensor params;               // master copies
  at::Tensor grads;                // reduced gradients
  at::Tensor frozen;               // parameters without gradient and optimizer state
};

// Fills the shards with the model's initial values; never holds more than a small part of a
// parameter. cuts: of each parameter.
void init_params(const ShardState& state,
                 const std::vector<ParamCut>& cuts,
                 const YokeModel& model);

}  // namespace yoke::ptd
