// The part of one rank along pp in a step: its blocks, units and StepSpec. It is a function of the
// model, the plan, the options and the pipeline, so every rank can compute the lists of all ranks,
// and `plan` can forecast a step without ranks. No function has side effects.
#pragma once

#include <vector>

#include "plugins/ptd/mesh.hpp"
#include "plugins/ptd/options.hpp"
#include "plugins/ptd/pipeline_plan.hpp"
#include "sdk/mesh/schedule/costs.hpp"
#include "sdk/mesh/schedule/schedule.hpp"
#include "sdk/mesh/schedule/units.hpp"
#include "yoke/backend.hpp"

namespace yoke::ptd {

struct RankPlan {
  std::vector<int> blocks;       // indices of its blocks in the model, ascending
  ModelSpec model;               // the model with these blocks only
  UnitMap units;                 // parameters that are gathered together
  StepSpec step;                 // a training step
  std::vector<BlockCost> costs;  // memory of one micro-batch, for each of its blocks
};

// Returns the plan of every rank along pp. `plan` must be complete; while its micro_batch is unset,
// each step has one micro-batch.
std::vector<RankPlan> rank_plans(const YokeModelSummary& model,
                                 const YokePlan& plan,
                                 const PtdOptions& options,
                                 const Pipeline& pipeline);

// Returns the steps of the ranks, in their order.
std::vector<StepSpec> steps_of(const std::vector<RankPlan>& ranks);

// Returns the size of the groups whose ranks hold the shards of one replica.
int shards_of(const YokePlan& plan, const PtdOptions& options);

}  // namespace yoke::ptd
