// Completes a plan, and reports what nanotron_compat cannot run. No function here communicates or
// uses LibTorch.
#pragma once

#include "plugins/nanotron_compat/settings.hpp"
#include "yoke/backend.hpp"

namespace yoke::nanotron_compat {

// Fills in the values that the plan leaves unset, and adds every refusal and note to `report`.
//
// - Unset degrees: all ranks become data ranks, as shards (dp_shards) with ZeRO stage 1, else as
//   replicas (dp_degree).
// - Unset precision: fp32, reduced in fp32, unless accumulate_grad_in_fp32 is false and the run is
//   in bf16.
// - Unset micro_batch: that of the file.
//
// For `yoke config import` it also reports the lines of a run file that replace the file.
void complete_plan(const YokePlanArgs& args, YokePlan& plan, PlanReport& report);

// Reads the settings again, on a rank of a run. The plan was accepted, so refusals cannot occur.
Settings settings_of(const YokeInitArgs& args);

}  // namespace yoke::nanotron_compat
