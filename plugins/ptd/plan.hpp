// Fills what a plan leaves open and says why ptd cannot run it. Pure.
#pragma once

#include "plugins/ptd/schedule/param_cut.hpp"
#include "plugins/ptd/schedule/units.hpp"
#include "yoke/backend.hpp"

namespace yoke::ptd {

// Unset degrees: what is left of the world goes into dp_shard, the rest becomes 1.
void complete_plan(const YokePlanArgs& args, YokePlan& plan, Refusals& refusals);

// The model as the schedule of one of `tp` ranks sees it.
ModelSpec model_spec(const YokeModelSummary& model, int tp);

// Of each parameter of the model, what this rank of tp has.
std::vector<ParamCut> param_cuts(const YokeModelSummary& model, int tp_rank, int tp);

}  // namespace yoke::ptd
