// Fills what a plan leaves open from an Accelerate config, and says why it cannot be run. Pure.
#pragma once

#include "plugins/accelerate_compat/strategy.hpp"
#include "yoke/backend.hpp"

namespace yoke::accelerate_compat {

// Unset degrees: from the config, else all ranks are replicas. An unset micro_batch: from
// gradient_accumulation_steps. What is not DDP is judged by the inner backend too. Says in notes
// what a run file would hold instead of the config.
void complete_plan(const YokePlanArgs& args, YokePlan& plan, PlanReport& refusals);

// The same again on a rank, after its plan was accepted.
struct Chosen {
  AccelerateConfig config;
  Strategy strategy;
};
Chosen chosen_for(const YokeInitArgs& args);

}  // namespace yoke::accelerate_compat
