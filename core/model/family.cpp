#include "core/model/family.hpp"

#include <algorithm>

#include "core/model/gpt2.hpp"
#include "core/model/hf_config.hpp"
#include "core/model/llama.hpp"
#include "yoke/error.hpp"
#include "yoke/text.hpp"

namespace yoke {
namespace {

// Returns the number of elements of a layer's parameters.
int64_t layer_params(const ModelDims& d) {
  const bool rms = d.positions == 0;
  const int64_t matrices = d.activation == Activation::kSwiglu ? 3 : 2;
  const int64_t norms = (rms ? 2 : 4) * d.dim + (d.qk_norm ? 2 * d.head_size() : 0);
  const int64_t biases = (d.qkv_bias ? d.q_dim() + 2 * d.kv_dim() : 0) + (d.o_bias ? d.dim : 0) +
                         (d.mlp_bias ? (matrices - 1) * d.ffn_dim + d.dim : 0);
  return 2 * d.dim * (d.q_dim() + d.kv_dim()) + matrices * d.dim * d.ffn_dim + norms + biases;
}

void check_positions(const ModelDims& d, int64_t seq_len) {
  if (d.positions == 0 || seq_len <= d.positions) return;
  throw Error(YOKE_INVALID_ARGUMENT,
              concat("data.seq_len = ", seq_len, ", but the model has a table of ") +
                  concat(d.positions, " learned positions; allowed: at most ", d.positions));
}

}  // namespace

ModelInfo model_info(const ModelConfig& model, int64_t seq_len) {
  const ModelDims d = model_dims(model);
  check_positions(d, seq_len);
  const int64_t final_norm = (d.positions == 0 ? 1 : 2) * d.dim;
  // Parameters that take part in products. The look-up of an input embedding is not a product.
  const int64_t computed = d.layers * layer_params(d) + final_norm + d.vocab * d.dim;
  ModelInfo out;
  // The host counts the parameters of a model with adapters.
  const bool adapters = model.lora.rank > 0;
  if (!adapters) out.num_params = computed + d.positions * d.dim + (d.tied ? 0 : d.vocab * d.dim);
  out.vocab = d.vocab;
  // The number of tokens to which the last token of a sequence attends, over all layers.
  double attended = 0;
  for (int64_t n = 0; n < d.layers; ++n) {
    const int64_t window = d.window(n);
    attended += static_cast<double>(window > 0 ? std::min(window, seq_len) : seq_len);
  }
  // Beside adapters, weights are frozen and need no gradients, a third of the work. The products
  // with the adapters are not counted.
  out.flops_per_token = (adapters ? 4.0 : 6.0) * static_cast<double>(computed) +
                        12.0 * static_cast<double>(d.q_dim()) * attended;
  const std::string& file = model.from.empty() ? model.config : model.from;
  if (file.empty()) {
    out.hf_config_json = hf_config_text(d, seq_len);
    return out;
  }
  const HfConfig from = read_hf_config(file);
  out.hf_config_json = hf_config_text(from, seq_len);
  for (const std::string& note : from.notes) out.notes.push_back(from.path + ": " + note);
  if (seq_len > from.max_positions)
    out.notes.push_back(from.path + concat(": data.seq_len = ", seq_len) +
                        concat(" is above max_position_embeddings = ", from.max_positions) +
                        ", so later positions of a sequence are new to the model");
  return out;
}

Family builtin_family(const ModelConfig& model, const PrecisionConfig& precision) {
  const auto build = [=](const FamilyArgs& args) {
    const bool rotary = model_dims(model).positions == 0;
    const Family family = rotary ? llama_family(model, precision) : gpt2_family(model, precision);
    return family.make_blocks(args);
  };
  return {build, [model](const FamilyArgs& args) { return model_info(model, args.seq_len); }};
}

std::map<std::string, Family> builtin_families(const ModelConfig& model,
                                               const PrecisionConfig& precision) {
  std::map<std::string, Family> families{{"auto", builtin_family(model, precision)}};
  for (const std::string& name : hf_families()) families[name] = builtin_family(model, precision);
  return families;
}

}  // namespace yoke
