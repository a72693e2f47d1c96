// Model families by name.
#pragma once

#include <functional>
#include <map>
#include <string>

#include "core/config/run_config.hpp"
#include "core/model/torch_model.hpp"

namespace yoke {

struct ModelInfo {
  int64_t num_params = 0;       // tied parameters once
  double flops_per_token = 0;   // forward + backward, PaLM convention: 6 N + 12 L H Q T
  std::string hf_config_json;   // config.json of the checkpoint; "" = none
};

struct Family {
  // Blocks in param dtype, one at a time, storage freed at once: building needs one block of memory.
  std::function<BlockList(const ModelConfig&, const DataConfig&, int32_t param_dtype)> make_blocks;
  std::function<ModelInfo(const ModelConfig&, const DataConfig&)> info;
};

// The families of the house ("llama").
const std::map<std::string, Family>& builtin_families();

}  // namespace yoke
