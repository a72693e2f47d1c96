// The dimensions of a model of Yoke's own families. Does not need LibTorch.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "core/config/run_config.hpp"

namespace yoke {

// How the frequencies of rotary positions are scaled for sequences longer than those of the
// pretraining. The formulas, and the names of their constants, are those of transformers.
struct RopeScaling {
  enum class Kind : uint8_t { kNone, kLinear, kDynamic, kYarn, kLlama3 } kind = Kind::kNone;
  double factor = 1;
  int64_t original_positions = 0;  // length in the pretraining: dynamic, yarn, llama3
  double slow = 1, fast = 1;       // yarn: beta_slow, beta_fast; llama3: low and high_freq_factor
  double attention_factor = 1;     // yarn: factor of the cosines and sines
  bool truncate = true;            // yarn: whole bounds of the ramp
  bool operator==(const RopeScaling&) const = default;
};

// The activation of a feed-forward layer: SwiGLU, or GELU exactly or with tanh.
enum class Activation : uint8_t { kSwiglu, kGelu, kGeluTanh };

struct ModelDims {
  int64_t dim = 0, layers = 0, heads = 0, kv_heads = 0, ffn_dim = 0, vocab = 0;
  bool tied = false;
  double rope_theta = 10000, norm_eps = 1e-5;
  int64_t head_dim = 0;  // 0 = dim / heads
  bool qkv_bias = false, o_bias = false, mlp_bias = false;
  bool qk_norm = false;  // RMSNorm of each head of queries and keys
  RopeScaling rope{};
  // For each layer the number of tokens to which a token attends, itself included; 0 = all before
  // it. Empty = 0 for all layers.
  std::vector<int64_t> windows{};
  // Rows of a table of learned positions; 0 = rotary positions.
  int64_t positions = 0;
  Activation activation = Activation::kSwiglu;

  bool operator==(const ModelDims&) const = default;
  int64_t head_size() const { return head_dim > 0 ? head_dim : dim / heads; }
  // Elements of the queries, and of the keys, of a token.
  int64_t q_dim() const { return heads * head_size(); }
  int64_t kv_dim() const { return kv_heads * head_size(); }
  int64_t window(int64_t layer) const {
    return windows.empty() ? 0 : windows[static_cast<size_t>(layer)];
  }
};

// Returns the family of the configuration. If it is "auto", that is the family of model.from or
// model.config, or "llama" if neither is set. Throws the errors of read_hf_config().
std::string model_family(const ModelConfig& config);

// Returns the dimensions of the preset with the overrides of the configuration, or those of
// config.json in model.from or model.config. Throws Error(INVALID_ARGUMENT), naming everything
// that is wrong, and the errors of read_hf_config().
ModelDims model_dims(const ModelConfig& config);

}  // namespace yoke
