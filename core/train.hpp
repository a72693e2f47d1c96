// The training loop of one rank. Start reading here.
//
// train() has four parts, which are four functions of train.cpp:
//
//   connect   all ranks check that they have the same plan; the backend makes its context
//   wrap      the backend wraps the model: it shards or replicates the parameters
//   restore   parameters, optimizer state and position are loaded from a checkpoint, if any
//   loop      each step: load a batch, let the backend run the step, report, evaluate, save
//
// The step itself is the backend's step(): train.cpp calls it and sees only the loss that it
// returns.
#pragma once

#include "core/base/log.hpp"
#include "core/comm/world.hpp"
#include "core/run/checkpointing.hpp"
#include "core/run/job.hpp"
#include "core/run/run_place.hpp"

namespace yoke {

// Trains on this rank until the last step, or until all ranks agree to stop. The run folder must
// exist. `position` is updated after each step, so that it is valid after a failure, too. Returns
// the signal that stopped the run early, the same on all ranks; 0 = it finished. Collective. Throws
// Error.
int train(const Job& job, const RunPlace& place, World& world, Log& log, Position& position);

}  // namespace yoke
