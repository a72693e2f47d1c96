// The block fp16 of a ds_config as keys of a run file.
#pragma once

#include <cstdint>
#include <string_view>
#include <vector>

#include "plugins/deepspeed_stub/config/ds_config.hpp"
#include "plugins/deepspeed_stub/config/scheduler.hpp"

namespace yoke::deepspeed_stub {

// Returns the keys of [loss_scale] with which a run scales its loss as DeepSpeed would: the values
// of the file and, for what it leaves out, DeepSpeed's defaults. Empty if the file has no block
// fp16, or one that is not enabled. "auto" means whether the dtype of the run, param_dtype, is
// fp16.
std::vector<HostKey> loss_scale_keys(const DsConfig& config, int32_t param_dtype);

// Returns whether the key configures the hysteresis of the loss scale, and the ZeRO stage is 0, at
// which DeepSpeed has none.
bool lacks_hysteresis(const DsConfig& config, std::string_view path);

// Appends a note for each key of the file with that property. loss_scale: the loss_scale_keys().
void note_hysteresis(const DsConfig& config,
                     const std::vector<HostKey>& loss_scale,
                     PlanMessages& messages);

}  // namespace yoke::deepspeed_stub
