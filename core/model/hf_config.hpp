// Reads and writes config.json of Hugging Face's LlamaForCausalLM, in the forms of transformers 4
// and 5. No LibTorch.
#pragma once

#include <cstdint>
#include <string>

#include "core/model/llama_dims.hpp"

namespace yoke {

struct HfConfig {
  LlamaDims dims;
  int64_t max_positions = 0;
  std::string text;  // the whole file, including the keys that Yoke does not use
};

// Reads config.json of a folder. Features that would change the mathematics, and that Yoke does not
// have, are errors; unknown keys are ignored. Throws Error: NOT_FOUND if the file does not exist,
// DATA_LOSS if it is not JSON, INVALID_ARGUMENT naming everything that is wrong.
HfConfig read_hf_config(const std::string& folder);
// As read_hf_config(), for a text. `where` begins every message.
HfConfig parse_hf_config(const std::string& text, const std::string& where);

// Return config.json for a checkpoint with fp32 parameters. The first form is for a model that was
// initialised by Yoke. The second is for a model that started from a folder, and keeps all other
// keys of that folder's config.json.
std::string hf_config_text(const LlamaDims& dims, int64_t max_positions);
std::string hf_config_text(const HfConfig& from, int64_t max_positions);

}  // namespace yoke
