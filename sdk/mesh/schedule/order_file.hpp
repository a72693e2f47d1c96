// Pipeline orders from a file, in the format of torch.distributed.pipelining: one line for each
// rank, with comma-separated actions such as 2F0 (stage 2, forward, micro-batch 0). No side
// effects.
#pragma once

#include <string>
#include <vector>

#include "sdk/mesh/schedule/pipeline.hpp"

namespace yoke::mesh {

// The orders of all ranks, and the stages that follow from them.
struct GivenOrders {
  std::vector<std::vector<StageStep>> of_rank;
  std::vector<int> rank_of;  // rank of each stage
  int micros = 0;
};

// Parses the text of a file. The actions are F (forward), B (whole backward), I and W (its two
// parts); empty cells mean that the rank is idle and have no effect. Throws
// Error(INVALID_ARGUMENT) with rank and column, both counted from 0, if a cell is not an action, a
// rank has none, a stage lies on two ranks, an action is missing, repeated or out of order, or
// actions wait for each other cyclically.
GivenOrders parse_orders(const std::string& text);
// Returns the first action with which a stage does not take its micro-batches in ascending order,
// such as "1W0"; "" if there is none. Such a stage adds up losses or gradients in another order
// than the built-in schedules do.
std::string out_of_order(const GivenOrders& orders);

}  // namespace yoke::mesh
