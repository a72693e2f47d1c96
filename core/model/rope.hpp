// The angles of rotary position embeddings, computed once per micro-batch and shared by all blocks.
#pragma once

#include <ATen/core/Tensor.h>

namespace yoke {

// Computes cosines and sines, and keeps those of the latest positions. One per model; one thread at
// a time.
class RopeCache {
 public:
  RopeCache(int64_t head_dim, double theta) : head_dim_(head_dim), theta_(theta) {}

  struct Angles {
    at::Tensor cos, sin;  // [B, S, head_dim / 2], fp64 for fp64 models, otherwise fp32
  };
  // Returns the angles for positions [B, S], int64, with any values. `dtype` is the dtype of the
  // tensors that will be rotated. The result is valid until the next call.
  const Angles& angles(const at::Tensor& positions, at::ScalarType dtype);

 private:
  bool holds(const at::Tensor& positions, at::ScalarType dtype) const;

  int64_t head_dim_;
  double theta_;
  at::Tensor seen_;       // latest positions; on the CPU a copy, elsewhere the tensor itself
  uint32_t version_ = 0;  // version of seen_ when the angles were computed
  Angles angles_;
};

}  // namespace yoke
