// The settings of the engine, with Megatron's defaults.
#pragma once

#include <cstdint>
#include <string_view>

#include "plugins/megatron_compat/config/config.hpp"
#include "sdk/compat/batch_loss.hpp"
#include "sdk/compat/recompute.hpp"

namespace yoke::megatron_compat {

using compat::Loss;
using compat::Recompute;

// Each member is described at its argument in config/table_honoured.cpp.
struct Settings {
  bool distributed_optimizer = false;
  bool overlap_grad_reduce = false;
  bool overlap_param_gather = false;
  bool average_in_collective = false;
  bool pad_buckets = false;
  int64_t bucket_size = 0;  // elements; 0 = Megatron's default
  int64_t num_buckets = 0;  // 0 = not given; else bucket_size is the parameters divided by it
  int64_t instances = 1;    // instances of the distributed optimizer
  Loss loss = Loss::kPerToken;
  Recompute recompute = Recompute::kNone;
  int64_t recompute_layers = 1;
};

// Returns the settings of a command line. loss: the option of this name, which may be empty. Values
// out of range and contradictions are added to `messages`.
Settings read_settings(const Config& config, std::string_view loss, PlanMessages& messages);

}  // namespace yoke::megatron_compat
