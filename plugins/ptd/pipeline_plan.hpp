// The pipeline of a run: how the blocks are cut into stages, and in which order ranks compute them.
// No function has side effects.
#pragma once

#include <memory>
#include <vector>

#include "plugins/ptd/options.hpp"
#include "plugins/ptd/schedule/schedule.hpp"
#include "yoke/backend.hpp"

namespace yoke::ptd {

// The same for all ranks. Without a pipeline there is one stage with all blocks.
struct Pipeline {
  PipelineKind kind = PipelineKind::k1F1B;
  Stages stages;
  std::shared_ptr<const GivenOrders> given;  // orders of ptd.pp_schedule_file; null = by kind
  int first_trained = 0;  // first block with a trained parameter; the number of blocks = none

  // Returns what a rank along pp needs to know for its schedule.
  PipelineSpec spec_of(int rank) const;
};

// Returns the pipeline of a plan that complete_pipeline() has accepted.
Pipeline make_pipeline(const YokeModelSummary& model,
                       const YokePlan& plan,
                       const PtdOptions& options);

// Returns the number of stages of each rank, unless ptd.pp_schedule_file is set.
int chunks_of(const PtdOptions& options);

// Returns how many sequences of a step a data rank has; 0 if the batch cannot be divided, which the
// host refuses. The degrees must be set.
int64_t sequences_of(const YokePlan& plan);
// Returns how many micro-batches a data rank has in a step; 0 if that is not a number, which the
// host refuses, or if micro_batch is unset.
int64_t micros_of(const YokePlan& plan);

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
