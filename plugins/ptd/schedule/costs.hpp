// The memory and communication of a step on this rank, added up over its schedule. Pure.
#pragma once

#include <cstdint>
#include <vector>

#include "plugins/ptd/schedule/schedule.hpp"

namespace yoke::ptd {

// Bytes of one block and micro-batch; negative = unknown.
struct BlockCost {
  int64_t activation = -1;  // what its forward saves for its backward
  int64_t carry = -1;       // its output, which counts until its own backward
  int64_t input = 0;  // what it gets from another pipeline rank; only for first blocks of stages
};

struct StepCosts {
  int64_t unsharded_bytes = 0;     // peak of gathered parameters and of gradients not reduced yet
  int64_t activation_bytes = 0;    // peak; -1 if the cost of a block is unknown
  int64_t dp_shard_bytes = 0;      // payload of gathers and reduce-scatters
  int64_t dp_replicate_bytes = 0;  // payload of all-reduces over the replicas
  int64_t pp_bytes = 0;            // messages between stages, sent and received; -1 = unknown
};

// Adds up the costs of `actions`, the schedule of `spec`. blocks: one entry per block of the spec.
StepCosts step_costs(const StepSpec& spec,
                     const std::vector<Action>& actions,
                     const std::vector<BlockCost>& blocks);

}  // namespace yoke::ptd
