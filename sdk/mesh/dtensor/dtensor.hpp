// Distributed tensors without Python: an at::Tensor whose value is spread over the ranks of a mesh.
// It has the global sizes and works in unchanged LibTorch code. Every ATen operator on it is
// computed on local tensors, with the communication that its placements require (dispatch.hpp,
// rules/). All ranks of the mesh must issue the same operators in the same order.
//
//   Mesh mesh({{"tp", comm}});
//   at::Tensor w = distribute_tensor(weight, mesh, {shard(0)});    // this rank keeps its rows
//   at::Tensor y = at::linear(x, w);                               // Shard on the last dim
//   at::Tensor whole = full_tensor(y);                             // all-gather
//
// All functions here are differentiable unless noted otherwise. They are not thread safe: a mesh
// and its tensors belong to one thread at a time.
#pragma once

#include <ATen/core/Tensor.h>

#include <initializer_list>

#include "sdk/mesh/dtensor/mesh.hpp"

namespace yoke::mesh {

bool is_dtensor(const at::Tensor& t);

// Return the mesh and the placements of a DTensor. Like local_of, they throw
// Error(FAILED_PRECONDITION) for any other tensor.
Mesh& mesh_of(const at::Tensor& t);
const Placements& placements_of(const at::Tensor& t);
// Returns this rank's tensor without a copy. Not differentiable.
const at::Tensor& local_of(const at::Tensor& t);

// Returns placements for the axes of a mesh, in order; the rest are Replicate.
Placements placements(std::initializer_list<Placement> of_axes);

// Makes a DTensor from a tensor that every rank has whole; each rank keeps its part. Causes no
// communication. Throws Error(INVALID_ARGUMENT) if the placements do not fit the tensor or the
// mesh.
at::Tensor distribute_tensor(const at::Tensor& whole, Mesh& mesh, const Placements& placements);
// Makes a DTensor of `sizes` from the local tensors of all ranks, without a copy. Throws
// Error(INVALID_ARGUMENT) if the local sizes are not those that the placements give this rank.
at::Tensor from_local(const at::Tensor& local,
                      Mesh& mesh,
                      const Placements& placements,
                      at::IntArrayRef sizes);
// Return the same value under other placements, or the whole tensor as a plain one. Collective over
// the axes whose placement changes.
at::Tensor redistribute(const at::Tensor& t, const Placements& to);
at::Tensor full_tensor(const at::Tensor& t);
// Returns this rank's tensor. The gradient of the result is taken as this rank's part of a gradient
// with the placements of t. Along axes on which t is Partial, each rank must have the whole
// gradient.
at::Tensor to_local(const at::Tensor& t);

// Turns an existing leaf into a DTensor, in place: the members of a module, its parameter registry
// and every other handle refer to the DTensor afterwards. local: this rank's part, possibly still
// without memory. Operators never redistribute the leaf, because it counts as a parameter. Not
// differentiable.
void convert_parameter(const at::Tensor& leaf,
                       const at::Tensor& local,
                       Mesh& mesh,
                       const Placements& placements);
// Turns the leaf back into a plain one, without memory. Does nothing for a plain tensor.
void revert_parameter(const at::Tensor& leaf);

}  // namespace yoke::mesh
