#include "core/model/hf_family.hpp"

namespace yoke {
namespace {

void read(HfReader& reader, HfConfig& config) {
  read_rotary_model(reader, {.kv_heads = 0, .max_positions = 2048}, config);
  reader.fixed({"sliding_window", "null", "a Llama has no sliding window"});
  config.dims.qkv_bias = config.dims.o_bias = reader.boolean("attention_bias", false);
  config.dims.mlp_bias = reader.boolean("mlp_bias", false);
}

}  // namespace

const HfFamily kHfLlama{"llama", "LlamaForCausalLM", "LlamaModel", read};

}  // namespace yoke
