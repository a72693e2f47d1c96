// GPT-2: learned positions, LayerNorm, biases, GELU, one matrix for queries, keys and values. The
// modules contain no code for parallelism. Parameter names are those of Hugging Face, so its tools
// can open Yoke's checkpoints.
#pragma once

#include "core/model/family.hpp"

namespace yoke {

// Returns the family. Its blocks are "transformer.embeddings", "transformer.h.0" and so on, and
// "lm_head", which consists of the final norm, the head and the loss. With model.blocks = "half" a
// layer is two blocks, such as "transformer.h.0.attn" and "transformer.h.0.mlp". Products in fp8
// are errors of make_blocks.
Family gpt2_family(const ModelConfig& config, const PrecisionConfig& precision = {});

}  // namespace yoke
