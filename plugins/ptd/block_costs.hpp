// What a block of the model costs one rank, from what the host reports about it. Pure.
#pragma once

#include "plugins/ptd/options.hpp"
#include "plugins/ptd/schedule/costs.hpp"
#include "yoke/parallel_backend.h"

namespace yoke::ptd {

// Returns the memory of one micro-batch in a block. It is unknown if the host does not report it:
// with tensor parallelism that takes an extension of the summary (yoke/cut_costs.hpp).
BlockCost block_cost(const YokeModelSummary& model,
                     int block,
                     const YokePlan& plan,
                     const PtdOptions& options);

}  // namespace yoke::ptd
