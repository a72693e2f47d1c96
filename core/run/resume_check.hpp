// Compares a job with the run that has saved a checkpoint: the configuration, the training data,
// and the model that a config.json describes.
#pragma once

#include <string>

#include "core/checkpoint/checkpoint.hpp"
#include "core/run/job.hpp"

namespace yoke {

// Throws Refused, naming what has changed, if the job is another one than that of the run in a
// folder, whose newest checkpoint is given. Warns of steps and learning rates that have changed.
// what: beginning of the message.
void require_same_run(const Job& job,
                      const std::string& run,
                      const CheckpointInfo& newest,
                      const std::string& what);

// Warns of everything that has changed since a checkpoint was saved, by this or another run, except
// for what may change freely.
void note_changes(const Job& job, const CheckpointInfo& saved);

}  // namespace yoke
