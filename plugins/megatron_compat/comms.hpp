// The communicators of a rank.
#pragma once

#include "sdk/compat/span.hpp"
#include "yoke/comm.hpp"

namespace yoke::megatron_compat {

using compat::span;

// Data ranks form a grid: dp_shard ranks share the buckets of one instance of the distributed
// optimizer, and dp_replicate instances keep the same shards. Without the distributed optimizer,
// every rank is an instance of its own.
struct Comms {
  // Collective over the world.
  explicit Comms(const YokeHost& host)
      : reduce(host, YOKE_AXIS_BIT(YOKE_DP_SHARD), "reduce"),
        gather(host, YOKE_AXIS_BIT(YOKE_DP_SHARD), "gather"),
        instances(host, YOKE_AXIS_BIT(YOKE_DP_REPLICATE), "reduce"),
        scalars(host, YOKE_ALL_AXES, "scalars") {}

  int data_ranks() const { return reduce.size() * instances.size(); }

  const Comm reduce;     // gradients, among the shards of an instance
  const Comm gather;     // parameters, likewise
  const Comm instances;  // gradients, among equal shards of the instances
  const Comm scalars;    // loss, number of targets and norm, among all ranks
};

}  // namespace yoke::megatron_compat
