// The configuration of a run with what its plan adds.
#pragma once

#include <string>

#include "core/config/config.hpp"
#include "yoke/parallel_backend.h"

namespace yoke {

// Returns the configuration with the values of a complete plan in the place of what it leaves
// unset: degrees, micro-batch and the dtype of reductions. Their origin is "chosen by BACKEND".
LoadedConfig with_plan(LoadedConfig config, const YokePlan& plan, const std::string& backend);

}  // namespace yoke
