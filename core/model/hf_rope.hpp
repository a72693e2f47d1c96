// Reads the rotary positions of a config.json. Does not need LibTorch.
#pragma once

#include <cstdint>

#include "core/model/hf_reader.hpp"
#include "core/model/model_dims.hpp"

namespace yoke {

// Sets rope_theta and rope of `dims` from rope_theta and rope_scaling (transformers 4) or
// rope_parameters (transformers 5). max_positions: value of max_position_embeddings, from which
// transformers takes the length of the pretraining if the file does not state it.
void read_hf_rope(HfReader& reader, int64_t max_positions, ModelDims& dims);

}  // namespace yoke
