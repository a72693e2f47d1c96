// A small model with everything that is awkward to shard: prime sizes, a scalar, a frozen parameter
// in the middle, a tied one in the first and the last block, one that the loss does not depend on;
// and the same mathematics written out plainly.
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

  // Blocks embed, mlp 0 .., head. mlp: x + tanh(x * scale @ up^T + bias) @ down^T with a frozen
  // scale; head: cross-entropy of gain * x @ out^T, summed over targets >= 0.
  BlockList blocks() const;

  using Params = std::map<std::string, at::Tensor>;
  // All parameters with their initial values; trainable ones require a gradient.
  Params plain_params() const;
  // The loss sum of tokens [B, T] against targets [B, T] on one graph.
  at::Tensor plain_loss(const Params& params,
                        const at::Tensor& tokens,
                        const at::Tensor& targets) const;

  static constexpr uint64_t kSeed = 5;
};

// Tokens and targets of the global samples [first, first + count); some targets are -1, so that
// micro-batches differ in weight.
struct TinySamples {
  at::Tensor tokens, targets;  // [count, kSeqLen] int64
  TinySamples(int64_t first, int64_t count);
};
double count_targets(const at::Tensor& targets);

}  // namespace yoke::ptd::testing
