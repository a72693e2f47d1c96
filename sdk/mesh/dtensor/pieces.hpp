// Exchanges along an axis that are cut into Mesh::Axis::pieces pieces, so that a piece is in flight
// while the product with another piece is computed. Collective over the axis.
#pragma once

#include <ATen/core/Tensor.h>
#include <ATen/core/ivalue.h>

#include <vector>

#include "sdk/mesh/dtensor/mesh.hpp"

namespace yoke::mesh {

// Computes aten::mm(a, b) if the decision for it gathers the rows of `a` along an axis with several
// pieces, and moves nothing else. `a` keeps the gathered rows. Returns the local product, or an
// undefined tensor if the decision needs something else. keys: those of the operator on local
// tensors.
at::Tensor product_in_pieces(c10::ArrayRef<c10::IValue> args,
                             const Decision& decision,
                             Mesh& mesh,
                             c10::DispatchKeySet keys);

// Computes a sum of products [outer * n, inner] and sums it over the ranks. Returns this rank's
// part [outer, n / ranks, inner]. outer * n: rows of the products; the ranks must divide n.
at::Tensor reduce_scatter_while_multiplying(Mesh& mesh,
                                            int axis,
                                            const std::vector<PendingProducts::Product>& products,
                                            int64_t outer);

}  // namespace yoke::mesh
