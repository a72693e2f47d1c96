// Model families by name.
#pragma once

#include <functional>
#include <map>
#include <string>

#include "core/config/run_config.hpp"
#include "core/model/torch_model.hpp"

namespace yoke {

struct ModelInfo {
  int64_t num_params = 0;  // tied parameters once
  int64_t vocab = 0;       // token ids are below it; 0 = the model takes no tokens
  // Forward + backward of one token, torchtitan's convention: 6 N + 12 L H Q T, where N leaves out
  // an input embedding that is only looked up, and T is the sequence length.
  double flops_per_token = 0;
  std::string hf_config_json;  // config.json of the checkpoint, whose weights are fp32; "" = none
};

struct Family {
  // Blocks in param dtype, whose parameters have no memory: building needs none, or one block's.
  // Throws Error(INVALID_ARGUMENT) naming every fault of the configuration.
  std::function<BlockList(const ModelConfig&, const DataConfig&, int32_t param_dtype)> make_blocks;
  std::function<ModelInfo(const ModelConfig&, const DataConfig&)> info;
};

// The families of the house ("llama").
const std::map<std::string, Family>& builtin_families();

}  // namespace yoke
