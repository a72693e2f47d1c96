// What the blocks of Yoke's families cost if their tensors are distributed. Pure.
#pragma once

#include <vector>

#include "core/model/model_dims.hpp"
#include "yoke/model.hpp"

namespace yoke {

// Adds the costs with distributed tensors to those of each block. costs: in execution order, as
// llama_costs() and gpt2_costs() return them. as_halves: each layer is two blocks.
void add_distributed_costs(const ModelDims& d,
                           const FamilyArgs& args,
                           bool as_halves,
                           std::vector<BlockCosts>& costs);

}  // namespace yoke
