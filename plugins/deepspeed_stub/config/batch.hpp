// DeepSpeed's batch rule:
//
//   train_batch_size =
//       train_micro_batch_size_per_gpu x gradient_accumulation_steps x data ranks
//
// The left side is always the global batch of the run file.
#pragma once

#include <vector>

#include "plugins/deepspeed_stub/config/ds_config.hpp"

namespace yoke::deepspeed_stub {

// Fills in plan.micro_batch if it is unset and the ds_config determines it. If a value contradicts
// the run, or the product does not match, adds a refusal to `messages`, with the arithmetic and the
// nearest values that would work.
void resolve_batch(const DsConfig& config, YokePlan& plan, PlanMessages& messages);

}  // namespace yoke::deepspeed_stub
