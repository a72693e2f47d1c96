// The training loop. Start reading here.
#pragma once

#include "core/checkpointing.hpp"
#include "core/comm/communicator.hpp"
#include "core/job.hpp"
#include "core/log.hpp"
#include "core/run_place.hpp"
#include "core/stop.hpp"

namespace yoke {

// Trains on this rank until the last step or an agreed stop, and returns how far it came. The run folder
// exists. Collective. Throws Error.
Position train(const Job& job, const RunPlace& place, CommWorld& world, StopAgreement& stop, Log& log);

}  // namespace yoke
