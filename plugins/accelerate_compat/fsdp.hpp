// fsdp_config of both versions: what it says about shards, and what the inner backend is told.
// Pure.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "plugins/accelerate_compat/config/accelerate_config.hpp"

namespace yoke::accelerate_compat {

// What the inner backend must be told; a value as in a run file, strings without quotes.
struct InnerOption {
  std::string key;
  std::string value;
  std::string_view from;  // Key::name() of what says so
};

struct Fsdp {
  bool shards = true;   // false: NO_SHARD, all ranks are replicas
  bool hybrid = false;  // one replica per machine
  std::vector<InnerOption> options;
};

// param_dtype: of the run. Adds every fault to messages.
Fsdp read_fsdp(const AccelerateConfig& config, int32_t param_dtype, PlanMessages& messages);

// Keys of fsdp_config in a run that is no FSDP.
void refuse_fsdp(const AccelerateConfig& config, PlanMessages& messages);

}  // namespace yoke::accelerate_compat
