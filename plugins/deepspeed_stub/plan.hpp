// Completes a plan, and reports what deepspeed_stub cannot run. No function here communicates.
#pragma once

#include "plugins/deepspeed_stub/config/settings.hpp"
#include "yoke/backend.hpp"

namespace yoke::deepspeed_stub {

// Fills in the values that the plan leaves unset, and adds every refusal and note to `report`.
//
// - Unset degrees: all ranks become data ranks, as replicas (dp_degree) at ZeRO stage 0 and as
//   shards (dp_shards) at stages 1 to 3.
// - Unset precision: fp32, reduced in fp32.
// - Unset micro_batch: computed from the ds_config if that determines it, else left unset.
//
// For `yoke config import` it also reports, for each key of the ds_config, the line of a run file
// that replaces it.
void complete_plan(const YokePlanArgs& args, YokePlan& plan, PlanReport& report);

// Reads the settings again, on a rank of a run. config: as its constructor leaves it.
// The plan was accepted, so refusals cannot occur, and notes are dropped.
Settings settings_of(DsConfig config, const YokeModelSummary& model, const YokePlan& plan);

// Returns the axis of the data ranks: YOKE_DP_REPLICATE at stage 0, else YOKE_DP_SHARD.
int data_axis(int64_t zero_stage);

}  // namespace yoke::deepspeed_stub
