// What the engine takes from a ds_config, with DeepSpeed's defaults.
#pragma once

#include <cstdint>
#include <vector>

#include "plugins/deepspeed_stub/config/ds_config.hpp"

namespace yoke::deepspeed_stub {

// Sizes and thresholds are elements, not bytes.
struct Settings {
  int64_t stage = 0;
  bool overlap_comm = false;  // DeepSpeed: true at stage 3
  bool reduce_scatter = true;
  bool allgather_partitions = true;
  int64_t reduce_bucket_size = 500'000'000;
  int64_t allgather_bucket_size = 500'000'000;
  int64_t prefetch_bucket_size = 50'000'000;
  int64_t param_persistence_threshold = 100'000;
  int64_t model_persistence_threshold = INT64_MAX;
  int64_t max_live_parameters = 1'000'000'000;
  int64_t max_reuse_distance = 1'000'000'000;
};

// Adds to `findings` what is out of range, and what has no effect at the stage.
Settings read_settings(const DsConfig& config, std::vector<Finding>& findings);

}  // namespace yoke::deepspeed_stub
