// Exchanges along an axis that are cut into Mesh::Axis::pieces pieces, so that a piece is in flight
// while the product with another piece is computed. Collective over the axis.
#pragma once

#include <ATen/core/Tensor.h>
#include <ATen/core/ivalue.h>

#include <vector>

#include "sdk/mesh/dtensor/mesh.hpp"

namespace yoke::mesh {

// If `decision`, which was made for aten::mm(a, b), gathers the rows of `a` along an axis with
// several pieces and changes no other placement, returns the local product [rows, columns of b].
// Then the local tensor of `a` is replaced by the gathered rows. Otherwise, or if the rows are
// gathered already or the ranks do not divide them, returns an undefined tensor. args: a, b. keys:
// the dispatch keys with which mm is called on the local tensors.
at::Tensor product_in_pieces(c10::ArrayRef<c10::IValue> args,
                             const Decision& decision,
                             Mesh& mesh,
                             c10::DispatchKeySet keys);

// Adds up the products, each [outer * n, inner], and then the result over the ranks of `axis`. n is
// a multiple of the number of ranks. Returns this rank's part, [outer, n / ranks, inner].
at::Tensor reduce_scatter_while_multiplying(Mesh& mesh,
                                            int axis,
                                            const std::vector<PendingProducts::Product>& products,
                                            int64_t outer);

}  // namespace yoke::mesh
