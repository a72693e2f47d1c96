// Reads and writes config.json of the families of hf_family.hpp, in the forms of transformers 4
// and 5. Does not need LibTorch.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "core/model/model_dims.hpp"

namespace yoke {

struct HfConfig {
  std::string family;  // model_type, such as "qwen3"
  ModelDims dims;
  int64_t max_positions = 0;
  std::vector<std::string> notes;  // sentences about keys that do not have their usual effect
  std::string text;                // text of the file, including keys that Yoke does not use
  std::string path;                // path of the file
};

// Returns the names of all families, as in model_type.
std::vector<std::string> hf_families();

// Reads config.json of a folder, or the file `path` itself. Keys that change the mathematics in a
// way that Yoke does not support are errors; unknown keys are ignored. Throws Error: NOT_FOUND if
// the file does not exist, DATA_LOSS if it is not JSON, INVALID_ARGUMENT naming everything that is
// wrong.
HfConfig read_hf_config(const std::string& path);
// Like read_hf_config(), for the text of a file. Every message begins with `where`.
HfConfig parse_hf_config(const std::string& text, const std::string& where);

// Return config.json for a checkpoint with fp32 parameters. The overload with `dims` is for a Llama
// that the run file describes. The overload with `from` is for a model that a config.json
// describes; it keeps all other keys of that file. max_positions: length of the sequences of this
// run; a smaller max_position_embeddings is raised to it where that does not change the model.
std::string hf_config_text(const ModelDims& dims, int64_t max_positions);
std::string hf_config_text(const HfConfig& from, int64_t max_positions);

}  // namespace yoke
