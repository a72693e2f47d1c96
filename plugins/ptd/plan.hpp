// Completes and checks a plan: chooses the degrees that the user left unset, reports why a plan is
// not accepted, and computes the sizes of the model on one rank. All functions are pure and can be
// called before any rank exists.
#pragma once

#include <vector>

#include "plugins/ptd/mesh.hpp"
#include "sdk/mesh/schedule/param_cut.hpp"
#include "sdk/mesh/schedule/units.hpp"
#include "yoke/backend.hpp"

namespace yoke::ptd {

// Fills the unset degrees and dtypes of the plan. An unset dp_shard becomes the world size divided
// by the product of all other degrees; every other unset degree becomes 1. Reports all refusals at
// once, and notes about options without effect.
void complete_plan(const YokePlanArgs& args, YokePlan& plan, PlanReport& report);

// Returns the parameters and blocks of the model on one of `tp` ranks: a parameter that tensor
// parallelism cuts has 1 / tp of its elements there.
ModelSpec model_spec(const YokeModelSummary& model, int tp);

}  // namespace yoke::ptd
