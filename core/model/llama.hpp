// The Llama family: RMSNorm, rotary embeddings that pair the halves of a head, grouped-query
// attention, SwiGLU, tied or untied head. The modules contain no code for parallelism. Parameter
// names and config.json are those of Hugging Face's LlamaForCausalLM, so Hugging Face's tools can
// open Yoke's checkpoints.
#pragma once

#include "core/model/family.hpp"
#include "core/model/llama_dims.hpp"

namespace yoke {

// Returns the family. Its blocks are "model.embed_tokens", "model.layers.0" and so on, and
// "lm_head", which consists of the final norm, the head and the loss. With model.blocks = "half" a
// layer is two blocks, such as "model.layers.0.self_attn" and "model.layers.0.mlp". `precision` says
// which of its products are in fp8; FamilyArgs has its dtype.
Family llama_family(const ModelConfig& config, const PrecisionConfig& precision = {});

}  // namespace yoke
