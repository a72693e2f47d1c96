// The communicators of a rank.
#pragma once

#include "sdk/compat/span.hpp"
#include "sdk/mesh/collectives/comm.hpp"
#include "yoke/comm.hpp"

namespace yoke::megatron_compat {

using compat::span;

// Ranks with the same part of the model form a grid: dp_shard ranks share the buckets of one
// instance of the distributed optimizer, and dp_replicate instances keep the same shards. Without
// the distributed optimizer, every rank is an instance of its own. Ranks of cp have the same
// parameters and gradients of different tokens, so they count as shards, or as instances without
// the distributed optimizer.
class Comms {
 public:
  // stages_return: ranks have several pipeline stages. Collective over the world.
  Comms(const YokeHost& host, const YokePlan& plan, bool distributed, bool stages_return)
      : reduce(host, axes(plan, YOKE_DP_SHARD, distributed), "reduce"),
        gather(host, axes(plan, YOKE_DP_SHARD, distributed), "gather"),
        instances(host, axes(plan, YOKE_DP_REPLICATE, !distributed), "reduce"),
        scalars(host, YOKE_ALL_AXES, "scalars"),
        model(mesh::ModelComms::make(plan, stages_return, host)) {}

  // Returns the number of ranks that have the same parameters, and the index of this one.
  int copies() const { return reduce.size() * instances.size(); }
  int copy() const { return instances.rank() * reduce.size() + reduce.rank(); }
  // Returns the number of ranks that have different sequences.
  int data_ranks() const { return copies() / model.cp.size(); }

  const Comm reduce;     // gradients, among the shards of an instance
  const Comm gather;     // parameters, likewise
  const Comm instances;  // gradients, among equal shards of the instances
  const Comm scalars;    // loss, number of targets and norm, among all ranks
  const mesh::ModelComms model;

 private:
  static uint32_t axes(const YokePlan& plan, int axis, bool with_cp) {
    return YOKE_AXIS_BIT(axis) | (with_cp && plan.degree[YOKE_CP] > 1 ? YOKE_AXIS_BIT(YOKE_CP) : 0);
  }
};

}  // namespace yoke::megatron_compat
