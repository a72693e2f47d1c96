// config.json of Hugging Face's LlamaForCausalLM, as transformers 4 and 5 write it. No LibTorch.
#pragma once

#include <cstdint>
#include <string>

#include "core/model/llama_dims.hpp"

namespace yoke {

struct HfConfig {
  LlamaDims dims;
  int64_t max_positions = 0;
  std::string text;  // all of it, with the keys that Yoke has no use for
};

// Reads config.json of a folder. What would change the mathematics and is not built is refused;
// keys that are not known are passed over. Throws Error: NOT_FOUND if there is none, DATA_LOSS if
// it is not JSON, INVALID_ARGUMENT naming every fault.
HfConfig read_hf_config(const std::string& folder);
// The same of a text; `where` begins every message.
HfConfig parse_hf_config(const std::string& text, const std::string& where);

// config.json of checkpoints with weights of fp32: of a model that started here, and of one that
// started from a folder, which keeps everything else that its own config.json said.
std::string hf_config_text(const LlamaDims& dims, int64_t max_positions);
std::string hf_config_text(const HfConfig& from, int64_t max_positions);

}  // namespace yoke
