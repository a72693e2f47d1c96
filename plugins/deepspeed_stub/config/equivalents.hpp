// The lines of a run file that replace a ds_config, for `yoke config import`.
#pragma once

#include "plugins/deepspeed_stub/config/ds_config.hpp"

namespace yoke::deepspeed_stub {

// Reports a line of a run file for every key of the ds_config that is honoured, or that repeats a
// value of the run file. plan: complete as far as the config allows.
void report_equivalents(const DsConfig& config, const YokePlan& plan, PlanReport& report);

}  // namespace yoke::deepspeed_stub
