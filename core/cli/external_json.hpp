// The configuration of a run for programs that are cases of a comparison.
#pragma once

#include <cstdint>
#include <string>

#include "core/config/config.hpp"

namespace yoke {

// Returns every key with its value as flat JSON. The dimensions of the model are filled in, paths
// to data are absolute, and train.steps is `steps`.
std::string external_json(const LoadedConfig& config, int64_t steps);

}  // namespace yoke
