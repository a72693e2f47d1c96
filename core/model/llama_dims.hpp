// The dimensions of a Llama model. Does not need LibTorch.
#pragma once

#include <cstdint>

#include "core/config/run_config.hpp"

namespace yoke {

struct LlamaDims {
  int64_t dim = 0, layers = 0, heads = 0, kv_heads = 0, ffn_dim = 0, vocab = 0;
  bool tied = false;
  double rope_theta = 10000, norm_eps = 1e-5;
};

// Returns the dimensions of the preset with the overrides of the configuration, or those of
// config.json in the folder model.from. Throws Error(INVALID_ARGUMENT), naming everything that is
// wrong, and the errors of read_hf_config().
LlamaDims llama_dims(const ModelConfig& config);

}  // namespace yoke
