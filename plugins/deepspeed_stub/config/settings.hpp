// The settings of the engine, from a ds_config, with DeepSpeed's defaults.
#pragma once

#include <cstdint>
#include <vector>

#include "plugins/deepspeed_stub/config/offload.hpp"

namespace yoke::deepspeed_stub {

// Sizes and thresholds count elements, not bytes. Each member is described at its key in keys.cpp.
struct Settings {
  int64_t stage = 0;          // ZeRO stage, 0 to 3
  bool overlap_comm = false;  // read_settings changes the default to true at stage 3
  bool reduce_scatter = true;
  bool allgather_partitions = true;
  int64_t reduce_bucket_size = 500'000'000;
  int64_t allgather_bucket_size = 500'000'000;
  int64_t prefetch_bucket_size = 50'000'000;
  int64_t param_persistence_threshold = 100'000;
  int64_t model_persistence_threshold = INT64_MAX;
  int64_t max_live_parameters = 1'000'000'000;
  int64_t max_reuse_distance = 1'000'000'000;
  OffloadSettings offload;
};

// Returns the settings of a config. Values out of range are added to `messages` as refusals and
// keep their default; keys without effect at the stage are added as notes.
Settings read_settings(const DsConfig& config, PlanMessages& messages);

}  // namespace yoke::deepspeed_stub
