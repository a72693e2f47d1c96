// The targets of a loss over rows whose columns may be cut between ranks.
#pragma once

#include <ATen/core/Tensor.h>

#include "sdk/mesh/dtensor/placement.hpp"

namespace yoke::mesh {

// The targets on this rank, one for each row. column: local column of the target, 0 where it is
// missing. missing: true where another rank has that column or the target is ignored.
struct Targets {
  at::Tensor column, missing;
};
Targets local_targets(const at::Tensor& targets, const Part& columns, int64_t ignored);

// Throws Error(INVALID_ARGUMENT) for illegal targets, as ATen does for plain rows. Otherwise every
// rank would take an illegal target for a column of another rank. On a device the check is left
// out, because it would make the host wait.
void check_targets(const at::Tensor& targets, int64_t classes, int64_t ignored);

}  // namespace yoke::mesh
