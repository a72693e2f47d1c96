// Reads and writes config.json of Hugging Face's LlamaForCausalLM, in the forms of transformers 4
// and 5. Does not need LibTorch.
#pragma once

#include <cstdint>
#include <string>

#include "core/model/llama_dims.hpp"

namespace yoke {

struct HfConfig {
  LlamaDims dims;
  int64_t max_positions = 0;
  std::string text;  // text of the file, including keys that Yoke does not use
};

// Reads config.json of a folder. Keys that change the mathematics in a way that Yoke does not
// support are errors; unknown keys are ignored. Throws Error: NOT_FOUND if the file does not exist,
// DATA_LOSS if it is not JSON, INVALID_ARGUMENT naming everything that is wrong.
HfConfig read_hf_config(const std::string& folder);
// Like read_hf_config(), for the text of a file. Every message begins with `where`.
HfConfig parse_hf_config(const std::string& text, const std::string& where);

// Return config.json for a checkpoint with fp32 parameters. The overload with `dims` is for a
// model that Yoke has initialised. The overload with `from` is for a model that was loaded from a
// folder; it keeps all other keys of that folder's config.json.
std::string hf_config_text(const LlamaDims& dims, int64_t max_positions);
std::string hf_config_text(const HfConfig& from, int64_t max_positions);

}  // namespace yoke
