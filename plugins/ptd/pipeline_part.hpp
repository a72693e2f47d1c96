// The pipeline of a run: which schedule, how the blocks are cut into stages, and which of them are
// on this rank. Pure.
#pragma once

#include <vector>

#include "plugins/ptd/options.hpp"
#include "plugins/ptd/schedule/schedule.hpp"
#include "plugins/ptd/schedule/units.hpp"
#include "yoke/backend.hpp"

namespace yoke::ptd {

// The part of one rank.
struct PipelinePart {
  std::vector<int> blocks;  // blocks of the model that are on this rank, ascending
  Stages stages;            // all stages; empty without a pipeline
  PipelineSpec spec;
};

// Returns the part of a rank along pp. The plan must have been checked.
PipelinePart pipeline_part(const YokeModelSummary& model,
                           const YokePlan& plan,
                           const PtdOptions& options,
                           int rank);

// Completes the part of the plan that a pipeline needs, the size of a micro-batch, and reports
// everything that is wrong with the pipeline. Does nothing without one. The degrees must be set.
void complete_pipeline(const YokeModelSummary& model,
                       const PtdOptions& options,
                       YokePlan& plan,
                       PlanReport& report);

}  // namespace yoke::ptd
