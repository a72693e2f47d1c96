// The pipeline of a run: how the blocks are cut into stages, and in which order ranks compute them.
// No function has side effects.
#pragma once

#include <memory>
#include <vector>

#include "plugins/ptd/mesh.hpp"
#include "plugins/ptd/options.hpp"
#include "sdk/mesh/schedule/schedule.hpp"
#include "yoke/backend.hpp"

namespace yoke::ptd {

// Returns the pipeline of a plan that complete_pipeline() has accepted.
Pipeline make_pipeline(const YokeModelSummary& model,
                       const YokePlan& plan,
                       const PtdOptions& options);

// Returns the number of stages of each rank, unless ptd.pp_schedule_file is set.
int chunks_of(const PtdOptions& options);

// Returns the work of one forward of each block for one sequence: its FLOPs if every block declares
// them and at least one is above 0; otherwise the elements of its matrices.
std::vector<double> work_of_blocks(const YokeModelSummary& model);

// Completes the part of the plan that a pipeline needs, the size of a micro-batch, and reports
// everything that is wrong with the pipeline. Does nothing without one. Everything else in the plan
// must be complete.
void complete_pipeline(const YokeModelSummary& model,
                       const PtdOptions& options,
                       YokePlan& plan,
                       PlanReport& report);

}  // namespace yoke::ptd
