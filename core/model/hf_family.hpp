// The families of transformers that Yoke reads, one per source file: hf_llama.cpp and so on. A file
// describes what its config.json may contain. The blocks are in llama.cpp, which builds all
// families with rotary positions, and in gpt2.cpp. Does not need LibTorch.
#pragma once

#include <string>

#include "core/model/hf_config.hpp"
#include "core/model/hf_reader.hpp"

namespace yoke {

struct HfFamily {
  const char* model_type;    // "llama", which is also its name in a run file
  const char* architecture;  // "LlamaForCausalLM"
  const char* base;          // "LlamaModel", the same without a head
  // Sets dims, max_positions and notes of `config`, and records what is wrong or not supported.
  void (*read)(HfReader& reader, HfConfig& config);
};

extern const HfFamily kHfLlama, kHfMistral, kHfQwen2, kHfQwen3, kHfGpt2;

// What transformers assumes if a file of a family with rotary positions lacks a key.
struct RotaryDefaults {
  int64_t kv_heads;  // 0 = as many as heads
  int64_t max_positions;
  int64_t head_dim = 0;  // 0 = hidden_size / num_attention_heads
};

// Reads what the families with rotary positions have in common.
void read_rotary_model(HfReader& reader, const RotaryDefaults& defaults, HfConfig& config);

// Reads the windows of the Qwen families: use_sliding_window, and either layer_types or
// max_window_layers.
void read_qwen_windows(HfReader& reader, ModelDims& dims);

}  // namespace yoke
