// The Llama family: RMSNorm, rotate-half RoPE, grouped-query attention, SwiGLU, tied or untied
// head. Plain modules without any parallelism; parameter names and config.json are those of Hugging
// Face's LlamaForCausalLM, so its tools open our checkpoints.
#pragma once

#include "core/model/family.hpp"
#include "core/model/llama_dims.hpp"

namespace yoke {

// Blocks: "model.embed_tokens", "model.layers.N" ..., "lm_head" (final norm, head and loss).
Family llama_family(const ModelConfig& config);

}  // namespace yoke
