// Reads mixed_precision fp8 and the section fp8_config. Products are the host's, so precision.product
// is not part of a plan, and a backend cannot check it. No function here uses LibTorch.
#pragma once

#include <vector>

#include "plugins/accelerate_compat/config/accelerate_config.hpp"

namespace yoke::accelerate_compat {

// Returns whether mixed_precision is fp8.
bool wants_fp8(const AccelerateConfig& config);

// Refuses other programs than torchao, and notes what the run file must have.
void check_fp8(const AccelerateConfig& config, PlanMessages& messages);

// Returns the lines of a run file, besides precision.param, that mixed_precision fp8 stands for.
std::vector<const char*> fp8_lines(const AccelerateConfig& config);

}  // namespace yoke::accelerate_compat
