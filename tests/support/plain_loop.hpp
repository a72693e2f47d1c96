// The oracle of all parity tests: one process, autograd over the whole model, and an optimizer in
// the simplest tensor operations. It shares no code with core, sdk or any backend. What the oracle
// and the tested code must agree on is implemented here a second time: initial values, names of
// parameters and order of the data.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <functional>
#include <map>
#include <optional>
#include <string>
#include <vector>

namespace yoke::testing {

struct PlainRun {
  // ---- Llama ----
  int64_t dim = 32, layers = 2, heads = 4, kv_heads = 2, ffn_dim = 48, vocab = 256;
  bool tied = false;
  double rope_theta = 10000, norm_eps = 1e-5;
  // ---- Data: bytes of a text; window w is the bytes [w * seq_len, (w + 1) * seq_len] ----
  uint64_t seed = 1;
  int64_t seq_len = 32, global_batch = 8, steps = 20;
  // Returns the indices of the text windows of a step; the first step is 1. If unset, a step uses
  // global_batch windows from (step - 1) * global_batch on.
  std::function<std::vector<int64_t>(int64_t step)> windows;
  // If set, this id ends a document: each document of a window is a sequence of its own, and the
  // first token of the next one is no target.
  std::optional<int64_t> document_end;
  // One for each byte of the text: 0 = it does not count as a target. Empty = all bytes count.
  std::vector<uint8_t> counts;
  // ---- Optimizer ----
  std::function<double(int64_t step)> lr = [](int64_t) { return 3e-3; };
  std::string optimizer = "adamw";  // as in a run file
  bool bias_correction = true;      // only for adamw and adam
  double momentum = 0, beta1 = 0.9, beta2 = 0.95, eps = 1e-8, weight_decay = 0.1;
  bool decay_matrices = false;  // weight decay applies to matrices only
  double clip = 1.0;            // 0 = off
  bool fp64 = false;            // dtype fp64 instead of fp32
};

struct PlainResult {
  std::vector<double> loss;       // mean over the targets of each step that count
  std::vector<double> grad_norm;  // gradient norm of each step, before clipping
  std::map<std::string, at::Tensor>
      params;  // parameters after the last step, by Hugging Face names
};

// Trains on the bytes of a text.
PlainResult train_plain(const PlainRun& run, const std::vector<uint8_t>& text);

// ---- Parts of the oracle, for tests of the oracle itself and for other oracles ----

using PlainParams = std::map<std::string, at::Tensor>;  // leaves that require gradients

// Returns the initial parameters in the run's dtype.
PlainParams plain_params(const PlainRun& run);
// Returns the sum of the cross-entropies of tokens [B, T] against targets [B, T] that are not
// negative, as a scalar in the run's dtype.
at::Tensor plain_loss(const PlainRun& run,
                      const PlainParams& params,
                      const at::Tensor& tokens,
                      const at::Tensor& targets);

}  // namespace yoke::testing
