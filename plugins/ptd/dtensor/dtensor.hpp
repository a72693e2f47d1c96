// Distributed tensors without Python: an at::Tensor whose value is spread over the ranks of a mesh.
// It has the sizes of the whole and goes through unchanged LibTorch code; every ATen operator on it
// is computed on local tensors, with the communication that its placements ask for
// (dispatch.hpp, rules/). All ranks of the mesh must issue the same operators in the same order.
//
//   Mesh mesh({{"tp", comm}});
//   at::Tensor w = distribute_tensor(weight, mesh, {shard(0)});    // this rank keeps its rows
//   at::Tensor y = at::linear(x, w);                               // Shard on the last dim
//   at::Tensor whole = full_tensor(y);                             // all-gather
//
// All functions here are differentiable unless they say otherwise. Not thread safe: a mesh and its
// tensors belong to one thread at a time.
#pragma once

#include <ATen/core/Tensor.h>

#include <initializer_list>

#include "plugins/ptd/dtensor/mesh.hpp"

namespace yoke::ptd {

bool is_dtensor(const at::Tensor& t);

// Of a DTensor; FAILED_PRECONDITION naming the function for any other.
Mesh& mesh_of(const at::Tensor& t);
const Placements& placements_of(const at::Tensor& t);
// This rank's tensor, as it lies. No copy, not differentiable.
const at::Tensor& local_of(const at::Tensor& t);

// The placements of a mesh's axes, in order; the rest Replicate.
Placements placements(std::initializer_list<Placement> of_axes);

// `whole`, which every rank has, as a DTensor: each rank keeps its part. Moves nothing.
at::Tensor distribute_tensor(const at::Tensor& whole, Mesh& mesh, const Placements& placements);
// A DTensor of `sizes` from the local tensors of all ranks; no copy.
at::Tensor from_local(const at::Tensor& local,
                      Mesh& mesh,
                      const Placements& placements,
                      at::IntArrayRef sizes);
// Collective.
at::Tensor redistribute(const at::Tensor& t, const Placements& to);
at::Tensor full_tensor(const at::Tensor& t);
// This rank's tensor. Its gradient is taken to lie as t does; where t is Partial, each rank's
// gradient is that of the whole.
at::Tensor to_local(const at::Tensor& t);

// Makes a DTensor of an existing leaf, in place: module members, the module's registry and every
// other handle see it. local: this rank's part; it may come without memory. From then on the leaf
// is a parameter: operators never redistribute it. Not differentiable.
void convert_parameter(const at::Tensor& leaf,
                       const at::Tensor& local,
                       Mesh& mesh,
                       const Placements& placements);
// Back to a plain leaf, without memory.
void revert_parameter(const at::Tensor& leaf);

}  // namespace yoke::ptd
