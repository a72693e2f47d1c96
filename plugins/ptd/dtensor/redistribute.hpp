// From one placement to another: what has to move between ranks, and nothing else.
#pragma once

#include <ATen/core/Tensor.h>

#include "plugins/ptd/dtensor/mesh.hpp"

namespace yoke::ptd {

// This rank's tensor under `to`, given `local` under `from`; global: sizes of the whole. The value
// of the whole tensor stays the same. May return `local` itself or a view of it. Collective over
// the axes whose placement changes, unless the change is Replicate -> anything, which moves
// nothing. An uneven shard is padded inside the collective only. value: DTensorMeta's, if any; the
// same one is not gathered twice in a row.
at::Tensor redistribute_local(Mesh& mesh,
                              const at::Tensor& local,
                              const Sizes& global,
                              const Placements& from,
                              const Placements& to,
                              int64_t value = 0);

// In place, of a tensor in this rank's memory.
void all_reduce(Mesh& mesh, int axis, const at::Tensor& inout, Reduce reduce);

// What a change costs, in elements that a rank passes to collectives, with a term for each message;
// 0 = nothing. `numel` of the whole tensor.
double redistribute_cost(const Placement& from, const Placement& to, int64_t numel);

}  // namespace yoke::ptd
