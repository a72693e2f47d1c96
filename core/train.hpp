// The training loop. Start reading here.
#pragma once

#include "core/base/log.hpp"
#include "core/comm/world.hpp"
#include "core/run/checkpointing.hpp"
#include "core/run/job.hpp"
#include "core/run/run_place.hpp"

namespace yoke {

// Trains on this rank until the last step or an agreed stop. `at` says at any time how many whole
// steps are done, also after a failure. The run folder exists. Collective. Throws Error.
void train(const Job& job, const RunPlace& place, World& world, Log& log, Position& at);

}  // namespace yoke
