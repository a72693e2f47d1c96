// Reads mixed_precision fp8 and the section fp8_config. The host computes the products, so the plan
// does not contain precision.product. The host itself refuses a run that does not have the line
// that fp8_lines() reports. No function here uses LibTorch.
#pragma once

#include <vector>

#include "plugins/accelerate_compat/config/accelerate_config.hpp"

namespace yoke::accelerate_compat {

// Returns whether mixed_precision is fp8.
bool wants_fp8(const AccelerateConfig& config);

// The key that requests gathers in fp8.
inline constexpr const char* kFp8Gather = "fp8_config.enable_fsdp_float8_all_gather";
// Returns whether parameters are to be gathered in fp8, if they are sharded.
bool wants_fp8_gather(const AccelerateConfig& config);

// Refuses every fp8 backend of Accelerate except torchao, and notes keys without effect.
void check_fp8(const AccelerateConfig& config, PlanMessages& messages);

// Returns the lines of a run file that have the effect of mixed_precision fp8, without the line of
// precision.param.
std::vector<const char*> fp8_lines(const AccelerateConfig& config);

}  // namespace yoke::accelerate_compat
