// The communicators of a rank.
#pragma once

#include "sdk/compat/span.hpp"
#include "yoke/comm.hpp"

namespace yoke::nanotron_compat {

using compat::span;

// All ranks are data ranks. With ZeRO they are shards, else replicas.
struct Comms {
  // Collective over the world.
  Comms(const YokeHost& host, bool zero)
      : data(host, YOKE_AXIS_BIT(zero ? YOKE_DP_SHARD : YOKE_DP_REPLICATE), "data"),
        scalars(host, YOKE_ALL_AXES, "scalars") {}

  const Comm data;     // gradients and parameters
  const Comm scalars;  // loss and number of targets
};

}  // namespace yoke::nanotron_compat
