#include "core/model/model_dims.hpp"

#include <map>
#include <optional>
#include <sstream>
#include <string>
#include <vector>

#include "core/model/hf_config.hpp"
#include "yoke/error.hpp"
#include "yoke/nearest.hpp"
#include "yoke/text.hpp"

namespace yoke {
namespace {

const std::map<std::string, ModelDims>& presets() {
  static const std::map<std::string, ModelDims> known{
      {"tiny", {64, 12, 8, 4, 256, 1024}},
      {"novels", {192, 4, 6, 2, 512, 256}},  // vocabulary: bytes
      {"llama-14m", {128, 6, 8, 4, 512, 32000}},
      {"llama-60m", {1024, 3, 16, 16, 2688, 32000}},
      {"llama-150m", {1024, 12, 16, 16, 2688, 32000}},
      {"llama3-8b", {4096, 32, 32, 8, 14336, 128256, false, 500000}},
  };
  return known;
}

std::string preset_names() {
  std::vector<std::string> names;
  for (const auto& [name, dims] : presets()) names.push_back(name);
  return join(names);
}

ModelDims preset(const std::string& name, std::vector<std::string>& faults) {
  if (name.empty()) return {};
  if (const auto it = presets().find(name); it != presets().end()) return it->second;
  faults.push_back(concat("model.preset = \"",
                          name,
                          "\"; allowed: ",
                          preset_names(),
                          ", or no preset and all dimensions in [model]"));
  return {};
}

// Appends a message to `faults` for dimensions that contradict each other. Every message begins
// with `where`.
void check_relations(const ModelDims& d,
                     const std::string& where,
                     std::vector<std::string>& faults) {
  const bool rotary = d.positions == 0;
  const bool divides = d.head_dim > 0 || d.dim % d.heads == 0;
  if (!divides || (rotary && d.head_size() % 2 != 0)) {
    const std::string given = d.head_dim > 0
                                  ? concat("head_dim = ", d.head_dim)
                                  : concat("model.dim = ", d.dim, " with model.heads = ", d.heads);
    faults.push_back(concat(where,
                            given,
                            "; allowed: ",
                            d.head_dim > 0 ? "an even number"
                            : rotary       ? "dim an even multiple of heads"
                                           : "dim a multiple of heads",
                            rotary ? " (rotary positions pair the elements of a head)" : ""));
  }
  if (d.heads % d.kv_heads != 0) {
    faults.push_back(concat(
        where, "model.kv_heads = ", d.kv_heads, "; allowed: a divisor of model.heads = ", d.heads));
  }
  if (rotary && !(d.rope_theta > 1)) {
    faults.push_back(concat(where, "model.rope_theta = ", d.rope_theta, "; allowed: above 1"));
  }
  if (!(d.norm_eps >= 0)) {
    faults.push_back(concat(where, "model.norm_eps = ", d.norm_eps, "; allowed: 0 and above"));
  }
}

// Returns whether the configuration says nothing about the dimensions.
bool has_no_dims(const ModelConfig& c) {
  return c.preset.empty() && c.dim == 0 && c.layers == 0 && c.heads == 0 && c.kv_heads == 0 &&
         c.ffn_dim == 0 && c.vocab == 0;
}

ModelDims dims_of_preset(const ModelConfig& config, std::vector<std::string>& faults) {
  if (has_no_dims(config)) {
    faults.push_back(concat(
        "no model is given; set model.preset (",
        preset_names(),
        "), model.from (a folder of "
        "Hugging Face with weights) or model.config (its config.json, with random values), or all "
        "of model.dim, model.layers, model.heads, model.ffn_dim and model.vocab"));
    return {};
  }
  ModelDims d = preset(config.preset, faults);
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

// Where a config.json defines the model: the key that names it, and its value.
struct ConfigSource {
  const char* key;
  const std::string& path;
};
std::optional<ConfigSource> source_of(const ModelConfig& config) {
  if (!config.from.empty()) return ConfigSource{"model.from", config.from};
  if (!config.config.empty()) return ConfigSource{"model.config", config.config};
  return std::nullopt;
}

HfConfig read_source(const ConfigSource& source) {
  try {
    return read_hf_config(source.path);
  } catch (const Error& e) {
    throw Error(e.code(), concat(source.key, " = \"", source.path, "\": ", e.what()));
  }
}

// The file `hf` defines all dimensions. A dimension that the run file sets too must have the same
// value.
void check_overrides(const ModelConfig& config,
                     const HfConfig& hf,
                     std::vector<std::string>& faults) {
  const ModelDims& d = hf.dims;
  const std::string& file = hf.path;
  if (!config.from.empty() && !config.config.empty()) {
    faults.push_back(concat("model.config = \"",
                            config.config,
                            "\" with model.from: ",
                            file,
                            " defines the model; leave model.config out"));
  }
  if (!config.preset.empty()) {
    faults.push_back(concat("model.preset = \"",
                            config.preset,
                            "\" with ",
                            source_of(config)->key,
                            ": ",
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
  if (config.family != "auto") compare("family", "model_type", config.family, hf.family);
  compare_dim("dim", "hidden_size", config.dim, d.dim);
  compare_dim("layers", "num_hidden_layers", config.layers, d.layers);
  compare_dim("heads", "num_attention_heads", config.heads, d.heads);
  compare_dim("kv_heads", "num_key_value_heads", config.kv_heads, d.kv_heads);
  compare_dim("ffn_dim", "intermediate_size", config.ffn_dim, d.ffn_dim);
  compare_dim("vocab", "vocab_size", config.vocab, d.vocab);
  compare("tied", "tie_word_embeddings", config.tied.value_or(d.tied), d.tied);
  compare("rope_theta", "rope_theta", config.rope_theta.value_or(d.rope_theta), d.rope_theta);
  compare("norm_eps", "rms_norm_eps", config.norm_eps.value_or(d.norm_eps), d.norm_eps);
}

}  // namespace

std::string model_family(const ModelConfig& config) {
  if (config.family != "auto") return config.family;
  const auto source = source_of(config);
  return source ? read_source(*source).family : "llama";
}

ModelDims model_dims(const ModelConfig& config) {
  std::vector<std::string> faults;
  const auto source = source_of(config);
  if (!source && config.family != "auto" && config.family != "llama") {
    throw Error(YOKE_INVALID_ARGUMENT,
                concat("model.family = \"",
                       config.family,
                       "\" needs a config.json; name it, or its folder, in model.config (random "
                       "values) or model.from (weights)"));
  }
  ModelDims d;
  std::string where;
  if (source) {
    const HfConfig hf = read_source(*source);
    check_overrides(config, hf, faults);
    d = hf.dims;
    where = hf.path + ": ";
  } else {
    d = dims_of_preset(config, faults);
  }
  if (faults.empty()) check_relations(d, where, faults);
  if (!faults.empty()) throw Error(YOKE_INVALID_ARGUMENT, join(faults, "\n"));
  return d;
}

}  // namespace yoke
