#include <map>
#include <string>
#include <vector>

#include "core/model/llama.hpp"
#include "yoke/error.hpp"

namespace yoke {
namespace {

const std::map<std::string, LlamaDims>& presets() {
  static const std::map<std::string, LlamaDims> known{
      {"tiny", {64, 12, 8, 4, 256, 1024}},
      {"novels", {192, 4, 6, 2, 512, 256}},  // bytes
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
  faults.push_back("model.preset = \"" + name + "\"; allowed: " + names +
                   ", or none and the dimensions below [model]");
  return {};
}

void check_relations(const LlamaDims& d, std::vector<std::string>& faults) {
  const auto text = [](int64_t n) { return std::to_string(n); };
  if (d.dim % d.heads != 0 || d.dim / d.heads % 2 != 0) {
    faults.push_back(
        "model.dim = " + text(d.dim) + " with model.heads = " + text(d.heads) +
        "; allowed: dim an even multiple of heads (rotary positions pair elements of a head)");
  }
  if (d.heads % d.kv_heads != 0) {
    faults.push_back("model.kv_heads = " + text(d.kv_heads) +
                     "; allowed: a divisor of model.heads = " + text(d.heads));
  }
  if (!(d.rope_theta > 1))
    faults.push_back("model.rope_theta = " + std::to_string(d.rope_theta) + "; allowed: above 1");
  if (!(d.norm_eps >= 0))
    faults.push_back("model.norm_eps = " + std::to_string(d.norm_eps) + "; allowed: 0 and above");
}

}  // namespace

LlamaDims llama_dims(const ModelConfig& config) {
  std::vector<std::string> faults;
  LlamaDims d = preset(config.preset, faults);
  bool complete = faults.empty();
  const auto take = [&](const char* key, int64_t given, int64_t& dim) {
    if (given != 0) dim = given;
    if (dim > 0 || !complete) return;
    faults.push_back(std::string("model.") + key +
                     (dim == 0 ? " is not given" : " = " + std::to_string(dim)) +
                     "; allowed: 1 and above, or a model.preset that sets it");
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
  if (faults.empty()) check_relations(d, faults);
  if (faults.empty()) return d;
  std::string text;
  for (const std::string& fault : faults) text += (text.empty() ? "" : "\n") + fault;
  throw Error(YOKE_INVALID_ARGUMENT, text);
}

}  // namespace yoke
