// What a run file would hold instead of a ds_config, for `yoke config import`.
#pragma once

#include "plugins/deepspeed_stub/config/ds_config.hpp"

namespace yoke::deepspeed_stub {

// A line of a run file for every key of the file that is honoured or says what the run file decides.
// plan: as far as it is settled.
void tell_equivalents(const DsConfig& config, const YokePlan& plan, PlanReport& refusals);

}  // namespace yoke::deepspeed_stub
