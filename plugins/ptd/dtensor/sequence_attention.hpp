// Attention over a sequence that is cut between ranks: every rank has some queries, and the keys
// and values of the same positions. Tiles of the attention matrix are computed one by one and
// merged by their log-sum-exp (Liu et al., Ring Attention, 2023; Dao, FlashAttention, 2022).
#pragma once

#include <ATen/core/Tensor.h>

#include <optional>
#include <vector>

#include "plugins/ptd/dtensor/mesh.hpp"

namespace yoke::ptd {

// A tile of the attention matrix between the positions of two ranks, in their local order.
struct Tile {
  Part queries, keys;
  bool causal;  // only positions up to the query's own; queries and keys start at the same one
};
// What rank `mine` computes with the keys of rank `theirs`; length: positions per rank, even under
// kHeadTail.
std::vector<Tile> tiles_of(SequenceOrder order, bool causal, int64_t length, int mine, int theirs);

// Collective over the axis. q [B, H, S, D], k and v [B, Hkv, S, D] of this rank, S alike on all.
struct SequenceAttention {
  Mesh& mesh;
  int axis;
  bool causal;
  std::optional<double> scale;

  struct Result {
    at::Tensor out;  // like q
    at::Tensor lse;  // [B, H, S], log-sum-exp over all keys, in the accumulation type
  };
  Result forward(const at::Tensor& q, const at::Tensor& k, const at::Tensor& v) const;

  struct Gradients {
    at::Tensor q, k, v;
  };
  Gradients backward(const at::Tensor& grad,
                     const at::Tensor& q,
                     const at::Tensor& k,
                     const at::Tensor& v,
                     const Result& result) const;
};

}  // namespace yoke::ptd
