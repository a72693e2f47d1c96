// Rotary position angles, computed once per micro-batch and shared by all blocks.
#pragma once

#include <ATen/core/Tensor.h>

namespace yoke {

// Keeps cos and sin of the last positions it saw. One per model; one thread at a time.
class RopeCache {
 public:
  RopeCache(int64_t head_dim, double theta) : head_dim_(head_dim), theta_(theta) {}

  struct Angles {
    at::Tensor cos, sin;  // [B, S, head_dim / 2], fp32, or fp64 for fp64
  };
  // positions [B, S] int64, any values. dtype: of the tensors to be rotated.
  const Angles& angles(const at::Tensor& positions, at::ScalarType dtype);

 private:
  bool holds(const at::Tensor& positions, at::ScalarType dtype) const;

  int64_t head_dim_;
  double theta_;
  at::Tensor seen_;  // CPU: a copy of the values; elsewhere the tensor itself
  uint32_t version_ = 0;
  Angles angles_;
};

}  // namespace yoke
