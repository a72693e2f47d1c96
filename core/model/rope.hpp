// The angles of rotary position embeddings, computed once per micro-batch and shared by all blocks.
#pragma once

#include <ATen/core/Tensor.h>

#include "core/model/model_dims.hpp"

namespace yoke {

// Computes cosines and sines, and keeps those of the latest positions. One per model; one thread at
// a time.
class RopeCache {
 public:
  // seq_len: length of the sequences, on which the frequencies of RopeScaling::kDynamic depend; 0 =
  // it is taken from the positions of each call.
  RopeCache(const ModelDims& dims, int64_t seq_len)
      : head_dim_(dims.head_size()),
        theta_(dims.rope_theta),
        scaling_(dims.rope),
        seq_len_(seq_len) {}

  struct Angles {
    at::Tensor cos, sin;  // [B, S, head_dim / 2], fp64 for fp64 models, otherwise fp32
  };
  // Returns the angle by which each pair of a head turns from one position to the next, [head_dim /
  // 2], for sequences of this length.
  at::Tensor frequencies(int64_t seq_len, const at::TensorOptions& options) const;
  // Returns the angles for positions [B, S], int64, with any values. `dtype` is the dtype of the
  // tensors that will be rotated. The result is valid until the next call.
  const Angles& angles(const at::Tensor& positions, at::ScalarType dtype);

 private:
  bool holds(const at::Tensor& positions, at::ScalarType dtype) const;

  int64_t head_dim_;
  double theta_;
  RopeScaling scaling_;
  int64_t seq_len_;
  at::Tensor seen_;       // latest positions; on the CPU a copy, elsewhere the tensor itself
  uint32_t version_ = 0;  // version of seen_ when the angles were computed
  Angles angles_;
};

}  // namespace yoke
