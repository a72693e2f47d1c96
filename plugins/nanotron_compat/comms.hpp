// The communicators of a rank.
#pragma once

#include "sdk/compat/span.hpp"
#include "sdk/mesh/collectives/comm.hpp"
#include "yoke/comm.hpp"

namespace yoke::nanotron_compat {

using compat::span;

// Data ranks are shards with ZeRO, else replicas. Ranks of cp have the same parameters and the same
// slices, but gradients of other tokens.
class Comms {
 public:
  // Collective over the world.
  Comms(const YokeHost& host, const YokePlan& plan, bool zero)
      : data(host, data_axis(zero), "data"),
        reduce(host,
               data_axis(zero) | (plan.degree[YOKE_CP] > 1 ? YOKE_AXIS_BIT(YOKE_CP) : 0),
               "reduce"),
        scalars(host, YOKE_ALL_AXES, "scalars"),
        model(mesh::ModelComms::make(plan, /*stages_return=*/false, host)) {}

  const Comm data;     // parameters
  const Comm reduce;   // gradients
  const Comm scalars;  // loss, number of targets and norm
  const mesh::ModelComms model;

 private:
  static uint32_t data_axis(bool zero) {
    return YOKE_AXIS_BIT(zero ? YOKE_DP_SHARD : YOKE_DP_REPLICATE);
  }
};

}  // namespace yoke::nanotron_compat
