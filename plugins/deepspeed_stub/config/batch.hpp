// DeepSpeed's batch rule: train_batch_size = train_micro_batch_size_per_gpu x
// gradient_accumulation_steps x data ranks. The run file's global batch is the whole.
#pragma once

#include <vector>

#include "plugins/deepspeed_stub/config/ds_config.hpp"

namespace yoke::deepspeed_stub {

// Fills plan.micro_batch if it is unset and the ds_config says what it must be. What contradicts
// the run, or does not close, becomes a finding with the arithmetic and the nearest values that do.
void resolve_batch(const DsConfig& config, YokePlan& plan, std::vector<Finding>& findings);

}  // namespace yoke::deepspeed_stub
