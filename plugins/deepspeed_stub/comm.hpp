// The communicators of a context.
#pragma once

#include "yoke/comm.hpp"

namespace yoke::deepspeed_stub {

// One per stream, so that a reduction never queues behind a gather.
struct Comms {
  Comm reduce, gather, scalars;
};

}  // namespace yoke::deepspeed_stub
