// The first pass of a schedule: what a rank computes and which messages it exchanges with the
// neighbouring stages, before the collectives are inserted. Pure.
#pragma once

#include <vector>

#include "sdk/mesh/schedule/schedule.hpp"

namespace yoke::mesh {

// Returns Forward, Recompute and Backward of all blocks and micro-batches, in the order of the
// pipeline, and the actions on messages.
std::vector<Action> list_computation(const StepSpec& spec);

}  // namespace yoke::mesh
