// Qwen 3 is a Llama that normalises each head of the queries and keys, with a head_dim of its own
// and the windows of Qwen 2.
#include "core/model/hf_family.hpp"

namespace yoke {
namespace {

void read(HfReader& reader, HfConfig& config) {
  read_rotary_model(reader, {.kv_heads = 32, .max_positions = 32768, .head_dim = 128}, config);
  config.dims.qk_norm = true;
  config.dims.qkv_bias = config.dims.o_bias = reader.boolean("attention_bias", false);
  read_qwen_windows(reader, config.dims);
}

}  // namespace

const HfFamily kHfQwen3{"qwen3", "Qwen3ForCausalLM", "Qwen3Model", read};

}  // namespace yoke
