// Completes a plan, and reports what megatron_compat cannot run. No function here communicates or
// uses LibTorch.
#pragma once

#include "plugins/megatron_compat/settings.hpp"
#include "yoke/backend.hpp"

namespace yoke::megatron_compat {

// Fills in the values that the plan leaves unset, and adds every refusal and note to `report`.
//
// - Unset degrees: those of model parallelism are the command line's, or 1. The remaining ranks
//   become data ranks, as shards (dp_shards) with the distributed optimizer, of which there may be
//   several instances (dp_degree), and as replicas (dp_degree) without it.
// - Unset precision: fp32, reduced in fp32, unless the command line reduces in bf16.
// - Unset micro_batch: that of the command line; without one, 1 in a pipeline.
//
// For `yoke config import` it also reports the lines of a run file that replace the command line.
void complete_plan(const YokePlanArgs& args, YokePlan& plan, PlanReport& report);

// Reads the settings again, on a rank of a run. The plan was accepted, so refusals cannot occur.
Settings settings_of(const YokeInitArgs& args);

}  // namespace yoke::megatron_compat
