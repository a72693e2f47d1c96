// The communicators of one rank.
#pragma once

#include "yoke/comm.hpp"

namespace yoke::deepspeed_stub {

// Three communicators over the same ranks. Each has a stream of its own, so that the reduction of
// gradients never queues behind a gather of parameters.
struct Comms {
  // axes: bits (YOKE_AXIS_BIT) of the axes whose ranks are data ranks. Collective over the world.
  // Throws Error(FAILED_PRECONDITION) if the world has several ranks and the host no collectives.
  Comms(const YokeHost& host, uint32_t axes)
      : reduce(host, axes, "reduce"),
        gather(host, axes, "gather"),
        scalars(host, axes, "scalars") {}

  Comm reduce;   // gradients
  Comm gather;   // parameters
  Comm scalars;  // loss, number of targets and gradient norm
};

}  // namespace yoke::deepspeed_stub
