// The lines of a run file that replace a ds_config, for `yoke config import`.
#pragma once

#include "plugins/deepspeed_stub/config/scheduler.hpp"

namespace yoke::deepspeed_stub {

// Reports a line of a run file for every key of the ds_config that is honoured, or that repeats a
// value of the run file. plan: complete as far as the config allows. host_keys: scheduler_keys()
// and loss_scale_keys().
void report_equivalents(const DsConfig& config,
                        const YokePlan& plan,
                        const std::vector<HostKey>& host_keys,
                        PlanReport& report);

}  // namespace yoke::deepspeed_stub
