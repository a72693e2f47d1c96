// Changes placements, with only the communication that the change requires.
#pragma once

#include <ATen/core/Tensor.h>

#include "sdk/mesh/dtensor/mesh.hpp"

namespace yoke::mesh {

// Returns this rank's tensor under the placements `to`, given the tensor `local` under `from`.
// global: sizes of the whole tensor. The value of the whole tensor stays the same. May return
// `local` itself or a view of it.
//
// Collective over the axes whose placement changes; a change from Replicate moves nothing and is
// not collective. An uneven shard is padded inside the collective only. value: DTensorMeta::value,
// or 0 if there is none; the value that was gathered last is not gathered again.
at::Tensor redistribute_local(Mesh& mesh,
                              const at::Tensor& local,
                              const Sizes& global,
                              const Placements& from,
                              const Placements& to,
                              int64_t value = 0);

// Reduces a plain tensor over an axis, in place. Collective over the axis.
void all_reduce(Mesh& mesh, int axis, const at::Tensor& inout, Reduce reduce);

// Returns the cost of a change, in elements that a rank passes to collectives, plus a term for each
// message; 0 = nothing to do. numel: elements of the whole tensor.
double redistribute_cost(const Placement& from, const Placement& to, int64_t numel);

}  // namespace yoke::mesh
