// Reads the section fsdp_config, versions 1 and 2: whether the model is sharded, and which options
// the inner backend gets. No function here communicates or uses LibTorch.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "plugins/accelerate_compat/config/accelerate_config.hpp"
#include "sdk/compat/delegate.hpp"

namespace yoke::accelerate_compat {

using compat::InnerOption;

struct Fsdp {
  bool shards = true;   // false for NO_SHARD, where all ranks are replicas
  bool hybrid = false;  // true for HYBRID_*, with one replica per machine
  std::vector<InnerOption> options;
};

// Reads fsdp_config. Problems are added to `messages`. param_dtype: dtype of the run's parameters.
Fsdp read_fsdp(const AccelerateConfig& config, int32_t param_dtype, PlanMessages& messages);

// For a run without FSDP: refuses the keys of fsdp_config in the file, and notes those that are set
// by variables.
void refuse_fsdp(const AccelerateConfig& config, PlanMessages& messages);

}  // namespace yoke::accelerate_compat
