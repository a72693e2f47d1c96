// The action lists of all ranks of a pipeline. No side effects.
#pragma once

#include <vector>

#include "sdk/mesh/schedule/schedule.hpp"

namespace yoke::mesh {

// Returns the lists of all ranks along pp, built from their specs and checked together. Throws
// Error(INTERNAL), naming rank and action, if one is wrong or if they do not fit together.
std::vector<std::vector<Action>> checked_lists(const std::vector<StepSpec>& specs);

}  // namespace yoke::mesh
