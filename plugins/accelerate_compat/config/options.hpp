// The keys of [accelerate_compat] in a run file.
#pragma once

#include <cstdint>
#include <vector>

#include "yoke/options.hpp"

namespace yoke::accelerate_compat {

// The options of DDP. In Python they are members of DistributedDataParallelKwargs and
// GradientAccumulationPlugin, which a config file cannot set.
struct DdpOptions {
  int64_t bucket_cap_mb;         // size of a bucket of gradients in MiB
  bool find_unused_parameters;   // whether a loss may be independent of some parameters
  bool gradient_as_bucket_view;  // whether gradients live in the buckets, without a copy
  bool sync_each_batch;          // whether to reduce after every micro-batch

  explicit DdpOptions(const Options& options);
};

// Returns the keys of DdpOptions.
const std::vector<const char*>& ddp_option_keys();

// Returns the descriptions of all options, for `describe`. They live as long as the process.
const std::vector<const YokeOptionInfo*>& option_infos();

}  // namespace yoke::accelerate_compat
