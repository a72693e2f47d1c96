// The block fp16 of a ds_config as keys of a run file.
#pragma once

#include <cstdint>
#include <vector>

#include "plugins/deepspeed_stub/config/ds_config.hpp"
#include "plugins/deepspeed_stub/config/scheduler.hpp"

namespace yoke::deepspeed_stub {

// Returns the keys of [loss_scale] with which a run scales its loss as DeepSpeed would: the values
// of the file and, for what it leaves out, DeepSpeed's defaults. Empty if the file has no block
// fp16, or one that is not enabled. "auto" means whether the dtype of the run, param_dtype, is
// fp16.
std::vector<HostKey> loss_scale_keys(const DsConfig& config, int32_t param_dtype);

}  // namespace yoke::deepspeed_stub
