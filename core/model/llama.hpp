// Llama and the families that differ from it only in ModelDims (Mistral, Qwen 2, Qwen 3): RMSNorm,
// rotary embeddings that pair the halves of a head, grouped-query attention, SwiGLU, tied or untied
// head. The modules contain no code for parallelism. Parameter names are those of Hugging Face, so
// its tools can open Yoke's checkpoints.
#pragma once

#include "core/model/family.hpp"

namespace yoke {

// Returns the family. Its blocks are "model.embed_tokens", "model.layers.0" and so on, and
// "lm_head", which consists of the final norm, the head and the loss. With model.blocks = "half" a
// layer is two blocks, such as "model.layers.0.self_attn" and "model.layers.0.mlp". `precision`
// says which of its products are in fp8; FamilyArgs has its dtype.
Family llama_family(const ModelConfig& config, const PrecisionConfig& precision = {});

}  // namespace yoke
