// Qwen 2 is a Llama with biases for queries, keys and values, in which the later layers may have a
// sliding window.
#include "core/model/hf_family.hpp"
#include "yoke/text.hpp"

namespace yoke {
namespace {

constexpr int64_t kDefaultWindow = 4096, kDefaultFullLayers = 28;

// Returns whether each layer has a window, by layer_types.
std::vector<bool> windowed_layers(HfReader& reader, const nlohmann::json& types, int64_t layers) {
  std::vector<bool> windowed;
  if (!types.is_array() || static_cast<int64_t>(types.size()) != layers) {
    reader.refuse("layer_types", types, concat("; allowed: a list of ", layers, " strings"));
    return windowed;
  }
  for (const auto& type : types) {
    if (type != "full_attention" && type != "sliding_attention") {
      reader.refuse("layer_types",
                    types,
                    "; allowed: a list of \"full_attention\" and \"sliding_attention\"");
      return {};
    }
    windowed.push_back(type == "sliding_attention");
  }
  return windowed;
}

void read(HfReader& reader, HfConfig& config) {
  read_rotary_model(reader, {.kv_heads = 32, .max_positions = 32768}, config);
  config.dims.qkv_bias = true;
  read_qwen_windows(reader, config.dims);
}

}  // namespace

void read_qwen_windows(HfReader& reader, ModelDims& dims) {
  const bool uses_windows = reader.boolean("use_sliding_window", false);
  const int64_t full_layers =
      reader.find("max_window_layers") != nullptr && *reader.find("max_window_layers") == 0
          ? 0
          : reader.count("max_window_layers", kDefaultFullLayers);
  const bool null_window = reader.has("sliding_window") && reader.find("sliding_window") == nullptr;
  const int64_t window =
      uses_windows && !null_window ? reader.count("sliding_window", kDefaultWindow) : 0;
  std::vector<bool> windowed;
  if (const nlohmann::json* types = reader.find("layer_types"); types != nullptr) {
    windowed = windowed_layers(reader, *types, dims.layers);
  } else {
    for (int64_t n = 0; n < dims.layers; ++n) windowed.push_back(window > 0 && n >= full_layers);
  }
  dims.windows.clear();
  for (const bool has_window : windowed) {
    if (has_window && window == 0) {
      return reader.refuse("layer_types",
                           *reader.find("layer_types"),
                           " has sliding_attention, but use_sliding_window is false or "
                           "sliding_window is null");
    }
    dims.windows.push_back(has_window ? window : 0);
  }
}

const HfFamily kHfQwen2{"qwen2", "Qwen2ForCausalLM", "Qwen2Model", read};

}  // namespace yoke
