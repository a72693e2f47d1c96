// The communicators of a context.
#pragma once

#include "yoke/comm.hpp"

namespace yoke::deepspeed_stub {

// One per stream, so that a reduction never queues behind a gather.
struct Comms {
  // Collective over the world. axes: bits of the axes whose ranks are data ranks.
  Comms(const YokeHost& host, uint32_t axes)
      : reduce(host, axes, "reduce"),
        gather(host, axes, "gather"),
        scalars(host, axes, "scalars") {}
  Comm reduce, gather, scalars;
};

}  // namespace yoke::deepspeed_stub
