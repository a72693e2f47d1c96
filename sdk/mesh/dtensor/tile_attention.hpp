// Attention of some queries to some keys, on one rank, with what is needed to merge it with
// attention to other keys. No communication.
#pragma once

#include <ATen/core/Tensor.h>

#include <optional>

namespace yoke::mesh {

// Returns the type in which attention of tensors like `t` is accumulated: fp64 for fp64, else fp32.
at::ScalarType accumulation_type(const at::Tensor& t);

// How queries attend to keys. Shapes: q [B, H, Sq, D], k and v [B, Hkv, Sk, D].
struct TileAttention {
  bool causal;                     // query i uses keys 0 to i; Sq and Sk are then equal
  std::optional<double> scale;     // factor of q k^T; unset = 1 / sqrt(D)
  std::optional<at::Tensor> mask;  // [..., Sq, Sk], added to the scores

  struct Result {
    at::Tensor out;  // [B, H, Sq, D], normalised over these keys; 0 for a query that sees none
    at::Tensor lse;  // [B, H, Sq], log-sum-exp of the scores, in fp32, or fp64 for fp64; undefined
                     // for a query that sees no key
  };
  struct Gradients {
    at::Tensor q, k, v;
  };

  // Use the fused kernel of the device, if it has one for these tensors.
  Result forward(const at::Tensor& q, const at::Tensor& k, const at::Tensor& v) const;
  // result: that over all keys, also those of other tiles. Then the gradients of all tiles add up
  // to the gradient of the whole attention.
  Gradients backward(const at::Tensor& grad,
                     const at::Tensor& q,
                     const at::Tensor& k,
                     const at::Tensor& v,
                     const Result& result) const;

  // The same, composed of products, which store all scores of the tile.
  Result composed_forward(const at::Tensor& q, const at::Tensor& k, const at::Tensor& v) const;
  Gradients composed_backward(const at::Tensor& grad,
                              const at::Tensor& q,
                              const at::Tensor& k,
                              const at::Tensor& v,
                              const Result& result) const;

 private:
  at::Tensor scores(const at::Tensor& q, const at::Tensor& k) const;
};

}  // namespace yoke::mesh
