// The settings of the engine, with Megatron's defaults.
#pragma once

#include <cstdint>
#include <string>
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
  bool fsdp = false;    // parameters are sharded as well, and ptd trains (fsdp.hpp)
  bool reshard = true;  // FSDP frees parameters between forward and backward
  Recompute recompute = Recompute::kNone;
  int64_t recompute_layers = 1;

  // Model parallelism.
  bool sequence_parallel = false;
  bool gather_keys = false;     // keys and values of other cp ranks come all at once, not in a ring
  int64_t chunks = 1;           // stages of each pipeline rank
  int64_t layers_of_chunk = 0;  // layers of a stage, from which chunks follow; 0 = not given
  int64_t group_size = 0;       // micro-batches on a stage before the next; 0 = pipeline ranks
  int64_t first_layers = 0, last_layers = 0;         // layers of the end ranks; 0 = as others
  bool count_embedding = false, count_loss = false;  // each counts as a layer
  std::string layout;                                // stages written out; "" = none
};

// Returns whether pipeline ranks may have several stages.
inline bool has_virtual_stages(const Settings& settings) {
  return settings.chunks > 1 || settings.layers_of_chunk > 0 || !settings.layout.empty();
}

// Returns the settings of a command line. loss: the option of this name, which may be empty. Values
// out of range and contradictions are added to `messages`.
Settings read_settings(const Config& config, std::string_view loss, PlanMessages& messages);

}  // namespace yoke::megatron_compat
