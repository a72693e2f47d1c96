// A piece has the same rows of each rank's part of the dim that is cut. So it is exchanged in equal
// parts, and each sum over the ranks has the order that it has without pieces. At most two pieces
// are in flight. On a device, the collectives run on streams of their own: waiting for one makes
// the stream of the products wait, not the CPU, and c10d keeps the memory of its tensors until
// then.
//
// The rows of a piece belong to several ranks and sequences, so they are apart in the whole matrix.
// A piece is therefore one matrix of its own, from or to which rows are copied: one large product
// and a copy take less time than many small products.
#include "sdk/mesh/dtensor/pieces.hpp"

#include <ATen/ATen.h>
#include <ATen/ops/mm_ops.h>

#include <algorithm>
#include <utility>

#include "sdk/mesh/dtensor/dtensor.hpp"
#include "sdk/mesh/dtensor/wrap.hpp"

namespace yoke::mesh {
namespace {

// A collective and its tensors, which live until it has ended.
struct Flight {
  at::Tensor in, out;
  Work work;
};

// Returns `pieces` parts of `rows` rows, or one for each row if there are fewer rows. Their sizes
// differ by at most 1.
std::vector<Part> pieces_of(int64_t rows, int64_t pieces) {
  pieces = std::min(pieces, rows);
  std::vector<Part> parts;
  for (int64_t i = 0; i < pieces; ++i) {
    const int64_t begin = rows * i / pieces, end = rows * (i + 1) / pieces;
    parts.push_back({begin, end - begin});
  }
  return parts;
}

void note(Mesh& mesh, int axis, const char* what, const at::Tensor& payload) {
  mesh.trace().collective(what, mesh.axis(axis).name, static_cast<int64_t>(payload.nbytes()));
}

// Returns the axis along which a matrix whose rows are cut is to become Replicate, if this can be
// done in pieces and is the only change; otherwise -1.
int gathered_axis(const Mesh& mesh, const Placements& from, const Placements& to) {
  int axis = -1;
  for (int a = 0; a < mesh.ndim(); ++a) {
    if (axis >= 0 && from[a].is_shard(0)) return -1;  // it cuts what the other axis has left
    if (from[a] == to[a]) continue;
    if (mesh.axis(a).pieces == 1 || !from[a].is_shard(0) || !to[a].is_replicate()) return -1;
    axis = a;
  }
  return axis;
}

// Gathers the rows of all ranks and multiplies them. Returns the rows [outer, n, inner] and the
// product [outer * n, columns]. local: [outer, n / ranks, inner], this rank's rows. multiply:
// returns rows [N, inner] times a matrix with `columns` columns.
template <class Multiply>
std::pair<at::Tensor, at::Tensor> multiply_while_gathering(
    Mesh& mesh, int axis, const at::Tensor& local, int64_t columns, const Multiply& multiply) {
  const int64_t ranks = mesh.size(axis), outer = local.size(0), mine = local.size(1),
                inner = local.size(2);
  const std::vector<Part> pieces = pieces_of(mine, mesh.axis(axis).pieces);
  const auto start = [&](const Part& piece) {
    const at::Tensor in = local.narrow(1, piece.begin, piece.count).contiguous();
    const at::Tensor out = at::empty({ranks, outer, piece.count, inner}, in.options());
    note(mesh, axis, "all-gather", out);
    return Flight{in, out, mesh.axis(axis).comm.all_gather(out, in)};
  };
  const at::Tensor rows = at::empty({outer, ranks, mine, inner}, local.options());
  const at::Tensor product = at::empty({outer, ranks, mine, columns}, local.options());
  Flight next = start(pieces[0]);
  for (size_t i = 0; i < pieces.size(); ++i) {
    const auto [begin, count] = pieces[i];
    Flight now = std::move(next);
    if (i + 1 < pieces.size()) next = start(pieces[i + 1]);
    now.work.wait();
    const at::Tensor part = multiply(now.out.view({-1, inner}));
    product.narrow(2, begin, count)
        .copy_(part.view({ranks, outer, count, columns}).transpose(0, 1));
    rows.narrow(2, begin, count).copy_(now.out.transpose(0, 1));
  }
  return {rows.view({outer, ranks * mine, inner}), product.view({-1, columns})};
}

}  // namespace

at::Tensor product_in_pieces(c10::ArrayRef<c10::IValue> args,
                             const Decision& decision,
                             Mesh& mesh,
                             c10::DispatchKeySet keys) {
  const at::Tensor &a = args[0].toTensor(), &b = args[1].toTensor();
  if (!is_wrapped(a) || !is_wrapped(b) || decision.kernel) return {};
  DTensorMeta& meta = meta_of(a);
  const int axis = gathered_axis(mesh, meta.placements, decision.inputs[0]);
  if (axis < 0 || meta.transposed || meta_of(b).placements != decision.inputs[1]) return {};
  const Sizes whole = local_sizes(a.sizes().vec(), decision.inputs[0], mesh.coordinates());
  const int64_t outer = meta.placements[axis].blocks, n = whole[0] / outer, inner = whole[1];
  const bool is_known = mesh.gathers().find(meta.value, axis, {outer, n, inner}) != nullptr;
  if (is_known || n == 0 || n % mesh.size(axis) != 0) return {};
  const at::Tensor local = local_of(a).reshape({outer, n / mesh.size(axis), inner});
  const at::Tensor& matrix = local_of(b);
  const auto [rows, product] =
      multiply_while_gathering(mesh, axis, local, matrix.size(1), [&](const at::Tensor& some) {
        return at::_ops::mm::redispatch(keys, some, matrix);
      });
  mesh.gathers().keep(meta.value, axis, rows);
  replace_local(meta, rows.view(whole), decision.inputs[0]);
  return product;
}

at::Tensor reduce_scatter_while_multiplying(Mesh& mesh,
                                            int axis,
                                            const std::vector<PendingProducts::Product>& products,
                                            int64_t outer) {
  const auto& [a0, b0] = products[0];
  const int64_t ranks = mesh.size(axis), inner = b0.size(1), mine = a0.size(0) / outer / ranks;
  // Returns some rows of the sum, [ranks, outer, count, inner].
  const auto multiply = [&](const Part& piece) {
    at::Tensor sum;
    for (const auto& [a, b] : products) {
      const at::Tensor rows = a.reshape({outer, ranks, mine, a.size(1)})
                                  .narrow(2, piece.begin, piece.count)
                                  .transpose(0, 1)
                                  .reshape({-1, a.size(1)});
      sum = sum.defined() ? sum.addmm_(rows, b) : at::mm(rows, b);
    }
    return sum.view({ranks, outer, piece.count, inner});
  };
  const at::Tensor out = at::empty({outer, mine, inner}, a0.options());
  Flight last;
  Part last_piece{};
  const auto finish_last = [&] {
    if (!last.work.pending()) return;
    last.work.wait();
    out.narrow(1, last_piece.begin, last_piece.count).copy_(last.out);
  };
  for (const Part& piece : pieces_of(mine, mesh.axis(axis).pieces)) {
    Flight now{multiply(piece), at::empty({outer, piece.count, inner}, out.options()), {}};
    note(mesh, axis, "reduce-scatter", now.in);
    now.work = mesh.axis(axis).comm.reduce_scatter_sum(now.out, now.in);
    finish_last();
    last = std::move(now);
    last_piece = piece;
  }
  finish_last();
  return out;
}

}  // namespace yoke::mesh
