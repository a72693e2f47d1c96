// Mistral is a Llama in which a token attends to the last sliding_window tokens. The key may be
// null, which means no window, but if it is missing the window is 4096.
#include "core/model/hf_family.hpp"

namespace yoke {
namespace {

constexpr int64_t kDefaultWindow = 4096;

void read(HfReader& reader, HfConfig& config) {
  read_rotary_model(reader, {.kv_heads = 8, .max_positions = 131072}, config);
  ModelDims& d = config.dims;
  const bool none = reader.has("sliding_window") && reader.find("sliding_window") == nullptr;
  if (!none) {
    const int64_t window = reader.count("sliding_window", kDefaultWindow);
    d.windows.assign(static_cast<size_t>(d.layers), window);
  }
}

}  // namespace

const HfFamily kHfMistral{"mistral", "MistralForCausalLM", "MistralModel", read};

}  // namespace yoke
