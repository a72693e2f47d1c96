#include "core/model/llama_dims.hpp"

#include <map>
#include <sstream>
#include <string>
#include <vector>

#include "core/model/hf_config.hpp"
#include "yoke/error.hpp"
#include "yoke/nearest.hpp"
#include "yoke/text.hpp"

namespace yoke {
namespace {

const std::map<std::string, LlamaDims>& presets() {
  static const std::map<std::string, LlamaDims> known{
      {"tiny", {64, 12, 8, 4, 256, 1024}},
      {"novels", {192, 4, 6, 2, 512, 256}},  // vocabulary: bytes
      {"llama-14m", {128, 6, 8, 4, 512, 32000}},
      {"llama-60m", {1024, 3, 16, 16, 2688, 32000}},
      {"llama-150m", {1024, 12, 16, 16, 2688, 32000}},
      {"llama3-8b", {4096, 32, 32, 8, 14336, 128256, false, 500000}},
  };
  return known;
}

LlamaDims preset(const std::string& name, std::vector<std::string>& faults) {
  if (name.empty()) return {};
  if (const auto it = presets().find(name); it != presets().end()) return it->second;
  std::string names;
  for (const auto& [known, dims] : presets()) names += (names.empty() ? "" : ", ") + known;
  faults.push_back(concat("model.preset = \"",
                          name,
                          "\"; allowed: ",
                          names,
                          ", or no preset and all dimensions in [model]"));
  return {};
}

// Appends a message to `faults` for dimensions that contradict each other. Every message begins
// with `where`.
void check_relations(const LlamaDims& d,
                     const std::string& where,
                     std::vector<std::string>& faults) {
  if (d.dim % d.heads != 0 || d.dim / d.heads % 2 != 0) {
    faults.push_back(concat(where,
                            "model.dim = ",
                            d.dim,
                            " with model.heads = ",
                            d.heads,
                            "; allowed: dim an even multiple of heads (rotary positions pair the "
                            "elements of a head)"));
  }
  if (d.heads % d.kv_heads != 0) {
    faults.push_back(concat(
        where, "model.kv_heads = ", d.kv_heads, "; allowed: a divisor of model.heads = ", d.heads));
  }
  if (!(d.rope_theta > 1)) {
    faults.push_back(concat(where, "model.rope_theta = ", d.rope_theta, "; allowed: above 1"));
  }
  if (!(d.norm_eps >= 0)) {
    faults.push_back(concat(where, "model.norm_eps = ", d.norm_eps, "; allowed: 0 and above"));
  }
}

LlamaDims dims_of_preset(const ModelConfig& config, std::vector<std::string>& faults) {
  LlamaDims d = preset(config.preset, faults);
  bool complete = faults.empty();
  const auto take = [&](const char* key, int64_t given, int64_t& dim) {
    if (given != 0) dim = given;
    if (dim > 0 || !complete) return;
    faults.push_back(concat("model.",
                            key,
                            dim == 0 ? " is not given" : concat(" = ", dim),
                            "; allowed: 1 and above, or a model.preset that sets it"));
  };
  take("dim", config.dim, d.dim);
  take("layers", config.layers, d.layers);
  take("heads", config.heads, d.heads);
  if (config.preset.empty() && config.kv_heads == 0) d.kv_heads = d.heads;
  take("kv_heads", config.kv_heads, d.kv_heads);
  take("ffn_dim", config.ffn_dim, d.ffn_dim);
  take("vocab", config.vocab, d.vocab);
  d.tied = config.tied.value_or(d.tied);
  d.rope_theta = config.rope_theta.value_or(d.rope_theta);
  d.norm_eps = config.norm_eps.value_or(d.norm_eps);
  return d;
}

LlamaDims read_folder(const std::string& from) {
  try {
    return read_hf_config(from).dims;
  } catch (const Error& e) {
    throw Error(e.code(), concat("model.from = \"", from, "\": ", e.what()));
  }
}

// The folder defines all dimensions. A dimension that the run file sets too must have the same
// value.
LlamaDims dims_of_folder(const ModelConfig& config, std::vector<std::string>& faults) {
  const LlamaDims d = read_folder(config.from);
  const std::string file = config.from + "/config.json";
  if (!config.preset.empty()) {
    faults.push_back(concat("model.preset = \"",
                            config.preset,
                            "\" with model.from: ",
                            file,
                            " defines the dimensions; leave model.preset out"));
  }
  const auto compare = [&](const char* key, const char* hf_key, auto given, auto stored) {
    if (given == stored) return;
    std::ostringstream text;
    text << std::boolalpha << "model." << key << " = " << given << ", but " << file << " has "
         << hf_key << " = " << stored << "; leave model." << key << " out";
    faults.push_back(text.str());
  };
  const auto compare_dim = [&](const char* key, const char* hf_key, int64_t given, int64_t stored) {
    compare(key, hf_key, given == 0 ? stored : given, stored);
  };
  compare_dim("dim", "hidden_size", config.dim, d.dim);
  compare_dim("layers", "num_hidden_layers", config.layers, d.layers);
  compare_dim("heads", "num_attention_heads", config.heads, d.heads);
  compare_dim("kv_heads", "num_key_value_heads", config.kv_heads, d.kv_heads);
  compare_dim("ffn_dim", "intermediate_size", config.ffn_dim, d.ffn_dim);
  compare_dim("vocab", "vocab_size", config.vocab, d.vocab);
  compare("tied", "tie_word_embeddings", config.tied.value_or(d.tied), d.tied);
  compare("rope_theta", "rope_theta", config.rope_theta.value_or(d.rope_theta), d.rope_theta);
  compare("norm_eps", "rms_norm_eps", config.norm_eps.value_or(d.norm_eps), d.norm_eps);
  return d;
}

}  // namespace

LlamaDims llama_dims(const ModelConfig& config) {
  std::vector<std::string> faults;
  const LlamaDims d =
      config.from.empty() ? dims_of_preset(config, faults) : dims_of_folder(config, faults);
  const std::string where = config.from.empty() ? "" : config.from + "/config.json: ";
  if (faults.empty()) check_relations(d, where, faults);
  if (!faults.empty()) throw Error(YOKE_INVALID_ARGUMENT, join(faults, "\n"));
  return d;
}

}  // namespace yoke
