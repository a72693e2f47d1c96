// What ptd makes of a plan: the degrees that are left open, the reasons why a plan is not accepted,
// and the model as one rank's schedule sees it. Pure functions, called the same way on every rank
// and before any rank exists.
#pragma once

#include <vector>

#include "plugins/ptd/schedule/param_cut.hpp"
#include "plugins/ptd/schedule/units.hpp"
#include "yoke/backend.hpp"

namespace yoke::ptd {

// Fills the unset degrees and dtypes of the plan: what is left of the world goes into dp_shard,
// every other degree becomes 1. Reports all refusals at once, and notes about options without
// effect.
void complete_plan(const YokePlanArgs& args, YokePlan& plan, PlanReport& report);

// Returns the model as the schedule of one of `tp` ranks sees it: parameters that tensor
// parallelism cuts have 1 / tp of their elements.
ModelSpec model_spec(const YokeModelSummary& model, int tp);

// Returns which part of each parameter rank tp_rank of tp has.
std::vector<ParamCut> param_cuts(const YokeModelSummary& model, int tp_rank, int tp);

}  // namespace yoke::ptd
