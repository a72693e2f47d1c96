// Attention over a sequence that is cut between ranks: every rank has some queries, and the keys
// and values of the same positions. The attention matrix is computed in tiles, which are merged by
// their log-sum-exp (Liu et al., Ring Attention, 2023; Dao et al., FlashAttention, 2022).
#pragma once

#include <ATen/core/Tensor.h>

#include <optional>
#include <vector>

#include "sdk/mesh/dtensor/mesh.hpp"

namespace yoke::mesh {

// A tile of the attention matrix between the positions of two ranks, in their local order.
struct Tile {
  Part queries, keys;
  // true: a query uses keys up to its own position; `queries` and `keys` start at the same position
  bool causal;
};
// Returns the tiles that rank `mine` computes with the keys of rank `theirs`. length: positions per
// rank, which must be even under kHeadTail. Pure.
std::vector<Tile> tiles_of(SequenceOrder order, bool causal, int64_t length, int mine, int theirs);

// Returns the positions that a rank of an axis has, in its local order. length: positions per rank.
// Pure.
std::vector<Part> positions_of_rank(SequenceOrder order, int64_t length, int rank, int ranks);

// Computes attention along one axis of the mesh. Both functions are collective over that axis.
// Shapes of this rank's tensors: q [B, H, S, D], k and v [B, Hkv, S, D]; S is the same on all
// ranks.
struct SequenceAttention {
  Mesh& mesh;
  int axis;
  bool causal;
  std::optional<double> scale;  // factor of q k^T; unset = 1 / sqrt(D)
  // Is added to the scores, for a window or for documents; undefined = none. Either [positions,
  // positions] of the whole sequence in its natural order, or [B or 1, H or 1, S, positions] for
  // the queries of this rank and all keys in their natural order. Every query must see the key of
  // its own position.
  at::Tensor mask{};

  struct Result {
    at::Tensor out;  // [B, H, S, D of v], in the type of q
    at::Tensor lse;  // [B, H, S]: log-sum-exp over all keys, in fp32, or fp64 for fp64
  };
  Result forward(const at::Tensor& q, const at::Tensor& k, const at::Tensor& v) const;

  // Returns gradients in the types and shapes of q, k and v. grad: gradient of result.out.
  struct Gradients {
    at::Tensor q, k, v;
  };
  Gradients backward(const at::Tensor& grad,
                     const at::Tensor& q,
                     const at::Tensor& k,
                     const at::Tensor& v,
                     const Result& result) const;
};

}  // namespace yoke::mesh
