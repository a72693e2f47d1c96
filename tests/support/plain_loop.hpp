// The oracle of all parity tests: one process, one model, whole-model autograd, an optimizer
// written out in the simplest tensor operations. Shares no code with core, sdk or any backend; what
// both must agree on (initial values, names of parameters, order of the data) is written a second
// time here, from DESIGN.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <functional>
#include <map>
#include <string>
#include <vector>

namespace yoke::testing {

struct PlainRun {
  // Llama
  int64_t dim = 32, layers = 2, heads = 4, kv_heads = 2, ffn_dim = 48, vocab = 256;
  bool tied = false;
  double rope_theta = 10000, norm_eps = 1e-5;
  // Data: bytes of a text; window w is the bytes [w * seq_len, (w + 1) * seq_len].
  uint64_t seed = 1;
  int64_t seq_len = 32, global_batch = 8, steps = 20;
  // Windows of step s (from 1); unset: (s - 1) * global_batch and the following ones.
  std::function<std::vector<int64_t>(int64_t step)> windows;
  // Optimizer
  std::function<double(int64_t step)> lr = [](int64_t) { return 3e-3; };
  bool sgd = false;
  double momentum = 0, beta1 = 0.9, beta2 = 0.95, eps = 1e-8, weight_decay = 0.1;
  bool decay_matrices = false;  // only parameters of two dimensions decay
  double clip = 1.0;            // 0 = off
  bool fp64 = false;            // else fp32
};

struct PlainResult {
  std::vector<double> loss, grad_norm;       // per step: mean over tokens; before clipping
  std::map<std::string, at::Tensor> params;  // after the last step, by the names of Hugging Face
};

PlainResult train_plain(const PlainRun& run, const std::vector<uint8_t>& text);

// ---- Parts of it, for tests of the oracle itself and for other oracles. ----

using PlainParams = std::map<std::string, at::Tensor>;  // leaves that require gradients

// Values of the counter-based initialisation, in the run's dtype.
PlainParams plain_params(const PlainRun& run);
// Sum of the cross-entropies of tokens [B, T] against targets [B, T], a scalar in the run's dtype.
at::Tensor plain_loss(const PlainRun& run,
                      const PlainParams& params,
                      const at::Tensor& tokens,
                      const at::Tensor& targets);

}  // namespace yoke::testing
