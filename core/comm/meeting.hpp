// The first exchange of a world: who is there.
#pragma once

#include "core/comm/transport.hpp"

namespace yoke {

// Returns when every rank of the world has said that it is there. Rank 0 tells options.progress
// every five seconds who is missing. Collective. Throws Error: UNAVAILABLE naming the missing ranks
// and those that are there after the timeout, INVALID_ARGUMENT if another process has this rank's
// number.
void meet(Mailbox& mailbox, int32_t rank, int32_t world_size, const CommOptions& options);

}  // namespace yoke
