// The lines of a run file that replace a ds_config, for `yoke config import`.
#pragma once

#include "plugins/deepspeed_stub/config/ds_config.hpp"

namespace yoke::deepspeed_stub {

// Reports the line of a run file for every key of the file that is honoured, or that repeats what
// the run file decides. plan: complete as far as the config allows.
void report_equivalents(const DsConfig& config, const YokePlan& plan, PlanReport& report);

}  // namespace yoke::deepspeed_stub
