// Accelerate's fp16: the loss is scaled by PyTorch's GradScaler with its default arguments.
#pragma once

#include <vector>

#include "plugins/accelerate_compat/config/accelerate_config.hpp"

namespace yoke::accelerate_compat {

// Returns the lines of a run file that scale the loss in this way, such as `loss_scale.window =
// 2000`; none if mixed_precision is not fp16.
std::vector<const char*> fp16_lines(const AccelerateConfig& config);

}  // namespace yoke::accelerate_compat
