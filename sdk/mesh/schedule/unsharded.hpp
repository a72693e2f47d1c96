// The memory of a rank for gathered parameters, for gradients that are not reduced yet, and for
// rounded weights. Pure.
#pragma once

#include <cstdint>
#include <vector>

#include "sdk/mesh/schedule/schedule.hpp"

namespace yoke::mesh {

// Returns, for each action of a list that has passed check_rank(), the bytes of these buffers that
// exist while it runs, in use or idle, in any step but the first one of a run, in which the pool
// starts empty. With one shard there are only rounded weights, from the first action on.
std::vector<int64_t> unsharded_bytes(const StepSpec& spec, const std::vector<Action>& list);

}  // namespace yoke::mesh
