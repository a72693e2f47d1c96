// The lines of a run file that replace a ds_config, and comments about its other keys, for `yoke
// config import`.
#pragma once

#include "plugins/deepspeed_stub/config/scheduler.hpp"
#include "sdk/compat/named_keys.hpp"

namespace yoke::deepspeed_stub {

// Reports a line of a run file for every key of the ds_config that is honoured, or that repeats a
// value of the run file. plan: complete as far as the config allows. host_keys: scheduler_keys()
// and loss_scale_keys().
void report_equivalents(const DsConfig& config,
                        const YokePlan& plan,
                        const std::vector<HostKey>& host_keys,
                        PlanReport& report);

// Explains every key of the file that the plan has not named: why it needs no line of a run file.
void explain_keys(const DsConfig& config, compat::NamedKeys& named);

}  // namespace yoke::deepspeed_stub
