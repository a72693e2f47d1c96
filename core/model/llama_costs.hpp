// What the blocks of a Llama cost: memory and FLOPs. Pure.
#pragma once

#include <vector>

#include "core/model/model_dims.hpp"
#include "yoke/model.hpp"

namespace yoke {

// Returns the costs of each block, in execution order. as_halves: each layer is two blocks,
// attention and feed-forward.
std::vector<BlockCosts> llama_costs(const ModelDims& d, const FamilyArgs& args, bool as_halves);

}  // namespace yoke
