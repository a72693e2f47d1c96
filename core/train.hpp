// The training loop. Start reading here.
#pragma once

#include <cstdint>
#include <string>

#include "core/comm/communicator.hpp"
#include "core/job.hpp"
#include "core/log.hpp"
#include "core/stop.hpp"

namespace yoke {

// Where a run writes and where it starts from.
struct RunPlace {
  std::string dir;     // run folder; exists
  std::string resume;  // checkpoint to start from; "" = from the initial values
};

// Trains on this rank until the last step or an agreed stop; collective. Returns the exit code: 0, or
// 128 + the signal that stopped it. Throws Error.
int train(const Job& job, const RunPlace& place, CommWorld& world, StopAgreement& stop, Log& log);

}  // namespace yoke
