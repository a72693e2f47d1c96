// Fills what a plan leaves open and says why deepspeed_stub cannot run it. Pure.
#pragma once

#include "plugins/deepspeed_stub/config/settings.hpp"
#include "yoke/backend.hpp"

namespace yoke::deepspeed_stub {

// Unset degrees: all ranks become data ranks, replicas at ZeRO stage 0 and shards at 1 to 3. An
// unset micro_batch: from the ds_config, if it says.
void complete_plan(const YokePlanArgs& args, YokePlan& plan, PlanReport& refusals);

// The same ds_config again, after its plan was accepted.
Settings settings_of(const YokeInitArgs& args);

// YOKE_DP_REPLICATE or YOKE_DP_SHARD.
int data_axis(int64_t zero_stage);

}  // namespace yoke::deepspeed_stub
