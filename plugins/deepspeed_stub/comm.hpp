// The communicators of one rank.
#pragma once

#include "yoke/comm.hpp"

namespace yoke::deepspeed_stub {

// Three communicators over the same ranks. Each has its own stream, so that a reduction of
// gradients never waits for a gather of parameters.
struct Comms {
  // axes: bits (YOKE_AXIS_BIT) of the axes whose ranks are data ranks. Collective over the world.
  // Throws Error(FAILED_PRECONDITION) if the world has several ranks and the host has no
  // collectives.
  Comms(const YokeHost& host, uint32_t axes)
      : reduce(host, axes, "reduce"),
        gather(host, axes, "gather"),
        scalars(host, axes, "scalars") {}

  Comm reduce;   // gradients
  Comm gather;   // parameters
  Comm scalars;  // loss, number of targets and gradient norm
};

}  // namespace yoke::deepspeed_stub
