// What the blocks of a rank cost it, from what the host reports about them. Pure.
#pragma once

#include <vector>

#include "sdk/mesh/schedule/costs.hpp"
#include "yoke/parallel_backend.h"

namespace yoke::mesh {

// What decides how tensor parallelism cuts the tensors of a block.
struct TensorCuts {
  bool sequence_parallel, loss_parallel;
};

// Returns the memory of one micro-batch in a block. It is unknown if the host does not report it:
// with tensor parallelism that takes an extension of the summary (yoke/cut_costs.hpp).
BlockCost block_cost(const YokeModelSummary& model,
                     int block,
                     const YokePlan& plan,
                     const TensorCuts& cuts);

// Returns the costs of the blocks of a rank. blocks: their indices in the model, ascending;
// pipeline: the part of this rank.
std::vector<BlockCost> block_costs(const YokeModelSummary& model,
                                   const std::vector<int>& blocks,
                                   const PipelineSpec& pipeline,
                                   const YokePlan& plan,
                                   const TensorCuts& cuts);

}  // namespace yoke::mesh
