// The bytes of activations, of messages and of their gradients that a rank holds during a step.
// No side effects.
#pragma once

#include <cstdint>
#include <vector>

#include "sdk/mesh/schedule/costs.hpp"

namespace yoke::mesh {

// Returns, for each action of a list that has passed check_rank(), the bytes that exist when it
// ends. blocks: the known costs of one micro-batch, one entry per block of the spec.
std::vector<int64_t> live_activations(const StepSpec& spec,
                                      const std::vector<Action>& actions,
                                      const std::vector<BlockCost>& blocks);

}  // namespace yoke::mesh
