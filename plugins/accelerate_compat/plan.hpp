// Completes a plan from an Accelerate config, and reports what cannot be run. No function here
// communicates.
#pragma once

#include "plugins/accelerate_compat/strategy.hpp"
#include "yoke/backend.hpp"

namespace yoke::accelerate_compat {

// Fills in the values that the plan leaves unset, and adds every refusal and note to `report`.
//
// - Unset degrees: as the config requires; without a config all ranks become replicas.
// - Unset micro_batch: from gradient_accumulation_steps if that is given, else left unset.
// - Unset reduce_dtype: param_dtype for DDP, else the inner backend's choice.
//
// A plan that is not DDP is also checked and completed by the inner backend. For `yoke config
// import` this function also reports, for each key of the config, the line of a run file that
// replaces it.
void complete_plan(const YokePlanArgs& args, YokePlan& plan, PlanReport& report);

// A config and the strategy that follows from it.
struct Chosen {
  AccelerateConfig config;
  Strategy strategy;
};
// Reads the config and chooses the strategy again, on a rank of a run. The plan was accepted, so
// refusals cannot occur, and notes are dropped.
Chosen chosen_for(const YokeInitArgs& args);

}  // namespace yoke::accelerate_compat
