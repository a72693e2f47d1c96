// A config.json describes many variants of a model. A lax reader would silently train a different
// model from the one that was saved. So every key that changes the mathematics is either supported
// or must have the value that means "not used". All problems of a file are collected and reported
// together, except for those of a model of an unknown family, whose keys mean nothing here.
//
// The dimensions are written back in the form of transformers 4, which version 5 reads too.
#include "core/model/hf_config.hpp"

#include <algorithm>
#include <filesystem>
#include <nlohmann/json.hpp>
#include <utility>

#include "core/base/files.hpp"
#include "core/base/strict_json.hpp"
#include "core/checkpoint/checkpoint.hpp"
#include "core/model/hf_family.hpp"
#include "core/model/hf_rope.hpp"
#include "yoke/error.hpp"
#include "yoke/nearest.hpp"
#include "yoke/text.hpp"

namespace yoke {
namespace {

using Json = nlohmann::json;
using Kind = RopeScaling::Kind;

constexpr uint64_t kMaxConfigBytes = 1 << 20;

const HfFamily* const kFamilies[] = {&kHfGpt2, &kHfLlama, &kHfMistral, &kHfQwen2, &kHfQwen3};

const HfFamily* const* find_type(const Json& model_type) {
  return std::find_if(std::begin(kFamilies), std::end(kFamilies), [&](const HfFamily* family) {
    return model_type == family->model_type;
  });
}

// Returns whether the architectures of a file contain the family. A file without a head is one of
// the whole model if its head is tied to the embedding; the files of weights decide that.
bool has_architecture(const Json& names, const HfFamily& family) {
  return names.is_array() && std::any_of(names.begin(), names.end(), [&](const Json& name) {
           return name == family.architecture || name == family.base;
         });
}

// Throws unless model_type and architectures name a family.
const HfFamily& find_family(HfReader& reader) {
  const Json* type = reader.find("model_type");
  const auto* const* at = find_type(type == nullptr ? Json() : *type);
  if (at == std::end(kFamilies)) {
    std::string allowed;
    for (const std::string& name : hf_families())
      allowed += (allowed.empty() ? "\"" : ", \"") + name + "\"";
    reader.refuse("model_type", type == nullptr ? Json() : *type, "; allowed: " + allowed);
    reader.finish();
  }
  const HfFamily& family = **at;
  if (const Json* names = reader.find("architectures");
      names != nullptr && !has_architecture(*names, family)) {
    reader.refuse("architectures",
                  *names,
                  concat("; allowed: [\"", family.architecture, "\"], [\"", family.base, "\"]"));
    reader.finish();
  }
  return family;
}

// Returns whether a larger max_position_embeddings would be another model: a longer table, or
// other angles.
bool positions_are_fixed(const HfConfig& config) {
  const Kind kind = config.dims.rope.kind;
  return config.dims.positions > 0 || (kind != Kind::kNone && kind != Kind::kLinear);
}

// Adds what transformers 4 reads instead of rope_parameters.
void add_old_rope(const ModelDims& dims, Json& json) {
  json["rope_theta"] = dims.rope_theta;
  const auto parameters = json.find("rope_parameters");
  if (dims.rope.kind == Kind::kNone || parameters == json.end() || !parameters->is_object()) return;
  Json scaling = *parameters;
  scaling.erase("rope_theta");
  json["rope_scaling"] = std::move(scaling);
}

}  // namespace

std::vector<std::string> hf_families() {
  std::vector<std::string> names;
  for (const HfFamily* family : kFamilies) names.emplace_back(family->model_type);
  return names;
}

void read_rotary_model(HfReader& reader, const RotaryDefaults& defaults, HfConfig& config) {
  for (const FixedKey& rule :
       {FixedKey{"hidden_act", "\"silu\"", "other activations are not supported"},
        FixedKey{"attention_dropout", "0.0", "dropout is not supported"},
        FixedKey{"partial_rotary_factor",
                 "1.0",
                 "rotary positions on a part of a head are not supported"},
        FixedKey{"quantization_config", "null", "quantized weights are not supported"}}) {
    reader.fixed(rule);
  }
  ModelDims& d = config.dims;
  d.dim = reader.count("hidden_size");
  d.layers = reader.count("num_hidden_layers");
  d.heads = reader.count("num_attention_heads");
  const bool by_default = !reader.has("num_key_value_heads") && defaults.kv_heads > 0;
  d.kv_heads = by_default ? defaults.kv_heads : reader.count("num_key_value_heads", d.heads);
  d.ffn_dim = reader.count("intermediate_size");
  d.vocab = reader.count("vocab_size");
  d.tied = reader.boolean("tie_word_embeddings", false);
  d.norm_eps = reader.number("rms_norm_eps", 1e-6);
  if (reader.find("head_dim") != nullptr) {
    d.head_dim = reader.count("head_dim", 1);
  } else if (!reader.has("head_dim")) {
    d.head_dim = defaults.head_dim;
  }
  config.max_positions = reader.count("max_position_embeddings", defaults.max_positions);
  read_hf_rope(reader, config.max_positions, d);
}

HfConfig parse_hf_config(const std::string& text, const std::string& where) {
  const Json json = parse_json_object(text, where);
  HfReader reader(json, where);
  const HfFamily& family = find_family(reader);
  HfConfig config;
  config.family = family.model_type;
  config.text = text;
  config.path = where;
  family.read(reader, config);
  reader.finish();
  return config;
}

HfConfig read_hf_config(const std::string& path) {
  const bool is_file = std::filesystem::is_regular_file(path);
  const std::string file = is_file ? path : path + "/config.json";
  try {
    // In a checkpoint, the manifest has a checksum of this file.
    const bool is_checkpoint = std::filesystem::exists(path + "/manifest.json");
    const std::string checked = is_checkpoint ? CheckpointReader(path).hf_config_json() : "";
    return parse_hf_config(checked.empty() ? read_text(file, kMaxConfigBytes) : checked, file);
  } catch (const Error& e) {
    if (e.code() != YOKE_NOT_FOUND) throw;
    throw Error(
        YOKE_NOT_FOUND,
        concat("there is no ",
               file,
               "; give a folder of this machine with config.json and *.safetensors, made by "
               "transformers' save_pretrained, `hf download NAME --local-dir FOLDER` or "
               "`yoke checkpoint export`"));
  }
}

std::string hf_config_text(const ModelDims& d, int64_t max_positions) {
  const nlohmann::ordered_json json = {{"architectures", {"LlamaForCausalLM"}},
                                       {"model_type", "llama"},
                                       {"hidden_size", d.dim},
                                       {"num_hidden_layers", d.layers},
                                       {"num_attention_heads", d.heads},
                                       {"num_key_value_heads", d.kv_heads},
                                       {"head_dim", d.head_size()},
                                       {"intermediate_size", d.ffn_dim},
                                       {"vocab_size", d.vocab},
                                       {"max_position_embeddings", max_positions},
                                       {"rms_norm_eps", d.norm_eps},
                                       {"rope_theta", d.rope_theta},
                                       {"tie_word_embeddings", d.tied},
                                       {"hidden_act", "silu"},
                                       {"attention_bias", false},
                                       {"mlp_bias", false},
                                       {"torch_dtype", "float32"},
                                       {"bos_token_id", nullptr},
                                       {"eos_token_id", nullptr}};
  return json.dump(2) + "\n";
}

std::string hf_config_text(const HfConfig& from, int64_t max_positions) {
  Json json = Json::parse(from.text);
  json["architectures"] = {(*find_type(from.family))->architecture};
  if (from.dims.positions == 0) add_old_rope(from.dims, json);
  if (!positions_are_fixed(from)) {
    json["max_position_embeddings"] = std::max(max_positions, from.max_positions);
  }
  json.erase("dtype");
  json["torch_dtype"] = "float32";
  return json.dump(2) + "\n";
}

}  // namespace yoke
