// A small model with everything that is awkward to shard: prime sizes, a scalar, a frozen parameter
// in the middle, a parameter that first and last block share, and one on which the loss does not
// depend. plain_loss() is the same model in plain LibTorch code.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "core/model/torch_model.hpp"

namespace yoke::ptd::testing {

struct TinyModel {
  static constexpr int64_t kVocab = 13, kDim = 7, kHidden = 11, kSeqLen = 3;

  int layers = 3;
  bool tied = true;
  bool frozen_embedding = false;
  at::ScalarType dtype = at::kDouble;

  // Returns the blocks embed, mlp0 ... and head. An mlp computes x + tanh(x * scale @ up^T + bias)
  // @ down^T with a frozen scale. The head sums the cross-entropy of gain * x @ out^T over targets
  // >= 0.
  BlockList blocks() const;

  using Params = std::map<std::string, at::Tensor>;
  // Returns all parameters with their initial values. Trainable ones require a gradient.
  Params plain_params() const;
  // Returns the loss sum of tokens [B, T] and targets [B, T], in a single autograd graph.
  at::Tensor plain_loss(const Params& params,
                        const at::Tensor& tokens,
                        const at::Tensor& targets) const;

  static constexpr uint64_t kSeed = 5;
};

// Tokens and targets of the global samples [first, first + count). Some targets are -1, so that
// micro-batches differ in their number of targets.
struct TinySamples {
  at::Tensor tokens, targets;  // int64 [count, kSeqLen]
  TinySamples(int64_t first, int64_t count);
};
double count_targets(const at::Tensor& targets);

}  // namespace yoke::ptd::testing
