// What a step costs this rank, read off its schedule.
#pragma once

#include <cstdint>
#include <vector>

#include "plugins/ptd/schedule/schedule.hpp"

namespace yoke::ptd {

// Of one block and micro-batch, in bytes; negative = not known.
struct BlockCost {
  int64_t activation = -1;  // kept from its forward to its backward
  int64_t carry = -1;       // its output, kept until the backward of the next block
};

struct StepCosts {
  int64_t unsharded_bytes = 0;     // peak of gathered parameters and of gradients not reduced yet
  int64_t activation_bytes = 0;    // peak; -1 if a block's are not known
  int64_t dp_shard_bytes = 0;      // payload along dp_shard
  int64_t dp_replicate_bytes = 0;  // payload along dp_replicate
};

// `actions`: the schedule of `spec`; blocks: one per block of it.
StepCosts step_costs(const StepSpec& spec,
                     const std::vector<Action>& actions,
                     const std::vector<BlockCost>& blocks);

}  // namespace yoke::ptd
