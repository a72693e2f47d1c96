// The keys of [accelerate_compat] in a run file.
#pragma once

#include <cstdint>
#include <vector>

#include "yoke/options.hpp"

namespace yoke::accelerate_compat {

// What DistributedDataParallelKwargs and GradientAccumulationPlugin hold in Python; for DDP only.
struct DdpOptions {
  int64_t bucket_cap_mb;
  bool find_unused_parameters;
  bool gradient_as_bucket_view;
  bool sync_each_batch;

  explicit DdpOptions(const Options& options);
};

// The keys of DdpOptions.
const std::vector<const char*>& ddp_option_keys();

// What `describe` tells the host.
const std::vector<const YokeOptionInfo*>& option_infos();

}  // namespace yoke::accelerate_compat
