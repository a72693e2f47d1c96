// The Llama family: RMSNorm, rotate-half RoPE, grouped-query attention, SwiGLU, tied or untied
// head. Plain modules without any parallelism; parameter names and config.json are those of Hugging
// Face's LlamaForCausalLM, so its tools open our checkpoints.
#pragma once

#include "core/model/family.hpp"

namespace yoke {

struct LlamaDims {
  int64_t dim = 0, layers = 0, heads = 0, kv_heads = 0, ffn_dim = 0, vocab = 0;
  bool tied = false;
  double rope_theta = 10000, norm_eps = 1e-5;
};

// The preset with the overrides of the configuration. Throws Error(INVALID_ARGUMENT) naming every
// fault.
LlamaDims llama_dims(const ModelConfig& config);

// Blocks: "model.embed_tokens", "model.layers.N" ..., "lm_head" (final norm, head and loss).
Family llama_family();

}  // namespace yoke
