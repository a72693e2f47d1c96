// A config.json describes many variants of Llama. A lax reader would silently train a different
// model from the one that was saved. So every key that changes the mathematics is either supported
// or must have the value that means "not used". All problems of a file are collected and reported
// together.
//
// The dimensions are written back in the form of transformers 4, which version 5 reads too.
#include "core/model/hf_config.hpp"

#include <algorithm>
#include <filesystem>
#include <nlohmann/json.hpp>
#include <optional>
#include <utility>
#include <vector>

#include "core/base/files.hpp"
#include "core/base/strict_json.hpp"
#include "core/checkpoint/checkpoint.hpp"
#include "yoke/error.hpp"
#include "yoke/nearest.hpp"
#include "yoke/text.hpp"

namespace yoke {
namespace {

using Json = nlohmann::json;

constexpr uint64_t kMaxConfigBytes = 1 << 20;
constexpr int64_t kMaxDim = int64_t{1} << 31;

// A key for which only the default of LlamaConfig is supported.
struct Fixed {
  const char* key;
  const char* allowed;  // JSON
  const char* reason;   // why other values are errors
};
constexpr Fixed kFixed[] = {
    {"hidden_act", "\"silu\"", "other activations are not supported"},
    {"attention_bias", "false", "biases are not supported"},
    {"mlp_bias", "false", "biases are not supported"},
    {"attention_dropout", "0.0", "dropout is not supported"},
    {"partial_rotary_factor", "1.0", "rotary positions on a part of a head are not supported"},
    {"sliding_window", "null", "sliding-window attention is not supported"},
    {"quantization_config", "null", "quantized weights are not supported"},
};

// Returns the value as text for a message, truncated if it is long.
std::string shown(const Json& value) {
  std::string text = value.dump(-1, ' ', false, Json::error_handler_t::replace);
  return text.size() <= 80 ? text : text.substr(0, 80) + "...";
}

// Reads keys one by one and collects everything that is wrong.
class Reader {
 public:
  Reader(const Json& json, std::string where) : json_(json), where_(std::move(where)) {}

  // Returns nullptr for a key that is missing or null, which means the same in these files.
  const Json* find(const char* key) const {
    const auto at = json_.find(key);
    return at == json_.end() || at->is_null() ? nullptr : &*at;
  }
  void fault(const std::string& text) { faults_.push_back(where_ + ": " + text); }
  void refuse(const char* key, const Json& value, const std::string& why) {
    fault(concat(key, " = ", shown(value), why));
  }

  // otherwise: result if the key is missing; 0 = the key is required.
  int64_t count(const char* key, int64_t otherwise = 0) {
    const Json* value = find(key);
    if (value == nullptr) {
      if (otherwise == 0) fault(concat(key, " is missing"));
      return otherwise;
    }
    if (value->is_number_integer() && *value > 0 && *value < kMaxDim) return value->get<int64_t>();
    refuse(key, *value, "; allowed: an integer of at least 1");
    return otherwise;
  }
  double number(const char* key, double otherwise) {
    const Json* value = find(key);
    if (value == nullptr) return otherwise;
    if (value->is_number()) return value->get<double>();
    refuse(key, *value, "; allowed: a number");
    return otherwise;
  }
  bool boolean(const char* key, bool otherwise) {
    const Json* value = find(key);
    if (value == nullptr) return otherwise;
    if (value->is_boolean()) return value->get<bool>();
    refuse(key, *value, "; allowed: true, false");
    return otherwise;
  }
  void fixed(const Fixed& rule) {
    const Json* value = find(rule.key);
    if (value == nullptr || *value == Json::parse(rule.allowed)) return;
    refuse(rule.key, *value, concat(": ", rule.reason, "; allowed: ", rule.allowed));
  }
  void finish() const {
    if (!faults_.empty()) throw Error(YOKE_INVALID_ARGUMENT, join(faults_, "\n"));
  }

 private:
  const Json& json_;
  const std::string where_;
  std::vector<std::string> faults_;
};

void check_architecture(Reader& reader) {
  const Json* type = reader.find("model_type");
  if (type == nullptr || *type != "llama") {
    reader.fault("model_type = " + (type == nullptr ? "null" : shown(*type)) +
                 "; allowed: \"llama\"");
  }
  const Json* names = reader.find("architectures");
  if (names == nullptr) return;
  if (names->is_array() &&
      std::find(names->begin(), names->end(), "LlamaForCausalLM") != names->end())
    return;
  reader.refuse("architectures", *names, "; allowed: [\"LlamaForCausalLM\"]");
}

// Reads "rope_scaling" of transformers 4 or "rope_parameters" of transformers 5. The key must be
// absent, or an object that requests no scaling. If it has a rope_theta, that is stored in *theta.
void read_rope(Reader& reader, const char* key, std::optional<double>* theta) {
  const Json* rope = reader.find(key);
  if (rope == nullptr) return;
  if (!rope->is_object()) return reader.refuse(key, *rope, "; allowed: null, an object");
  for (const char* type : {"rope_type", "type"}) {
    const auto at = rope->find(type);
    if (at == rope->end() || at->is_null() || *at == "default") continue;
    return reader.refuse(
        key, *rope, ": scaled rotary positions are not supported; allowed: null, \"default\"");
  }
  if (const auto at = rope->find("partial_rotary_factor"); at != rope->end() && *at != 1.0) {
    return reader.refuse(key, *rope, "; allowed: a partial_rotary_factor of 1");
  }
  const auto at = rope->find("rope_theta");
  if (at == rope->end() || at->is_null()) return;
  if (!at->is_number()) return reader.refuse(key, *rope, "; allowed: a number as rope_theta");
  if (*theta && **theta != at->get<double>()) {
    return reader.refuse(key, *rope, " contradicts rope_theta = " + shown(Json(**theta)));
  }
  *theta = at->get<double>();
}

double read_rope_theta(Reader& reader) {
  std::optional<double> theta;
  if (reader.find("rope_theta") != nullptr) theta = reader.number("rope_theta", 0);
  read_rope(reader, "rope_scaling", &theta);
  read_rope(reader, "rope_parameters", &theta);
  return theta.value_or(10000);
}

LlamaDims read_dims(Reader& reader) {
  LlamaDims d;
  d.dim = reader.count("hidden_size");
  d.layers = reader.count("num_hidden_layers");
  d.heads = reader.count("num_attention_heads");
  d.kv_heads = reader.count("num_key_value_heads", d.heads);
  d.ffn_dim = reader.count("intermediate_size");
  d.vocab = reader.count("vocab_size");
  d.tied = reader.boolean("tie_word_embeddings", false);
  d.norm_eps = reader.number("rms_norm_eps", 1e-6);
  d.rope_theta = read_rope_theta(reader);
  if (d.dim > 0 && d.heads > 0 && reader.count("head_dim", d.dim / d.heads) != d.dim / d.heads) {
    reader.refuse("head_dim",
                  *reader.find("head_dim"),
                  concat("; allowed: hidden_size / num_attention_heads = ", d.dim / d.heads));
  }
  return d;
}

}  // namespace

HfConfig parse_hf_config(const std::string& text, const std::string& where) {
  const Json json = parse_json_object(text, where);
  Reader reader(json, where);
  HfConfig config;
  config.text = text;
  check_architecture(reader);
  for (const Fixed& rule : kFixed) reader.fixed(rule);
  config.dims = read_dims(reader);
  config.max_positions = reader.count("max_position_embeddings", 2048);
  reader.finish();
  return config;
}

HfConfig read_hf_config(const std::string& folder) {
  const std::string path = folder + "/config.json";
  try {
    // In a checkpoint, the manifest has a checksum of this file.
    const bool is_checkpoint = std::filesystem::exists(folder + "/manifest.json");
    const std::string checked = is_checkpoint ? CheckpointReader(folder).hf_config_json() : "";
    return parse_hf_config(checked.empty() ? read_text(path, kMaxConfigBytes) : checked, path);
  } catch (const Error& e) {
    if (e.code() != YOKE_NOT_FOUND) throw;
    throw Error(
        YOKE_NOT_FOUND,
        concat("there is no ",
               path,
               "; give a folder of this machine with config.json and *.safetensors, made by "
               "transformers' save_pretrained, `hf download NAME --local-dir FOLDER` or "
               "`yoke checkpoint export`"));
  }
}

std::string hf_config_text(const LlamaDims& d, int64_t max_positions) {
  const nlohmann::ordered_json json = {{"architectures", {"LlamaForCausalLM"}},
                                       {"model_type", "llama"},
                                       {"hidden_size", d.dim},
                                       {"num_hidden_layers", d.layers},
                                       {"num_attention_heads", d.heads},
                                       {"num_key_value_heads", d.kv_heads},
                                       {"head_dim", d.dim / d.heads},
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
  json["max_position_embeddings"] = std::max(max_positions, from.max_positions);
  json["rope_theta"] = from.dims.rope_theta;  // transformers 4 does not read rope_parameters
  json.erase("dtype");
  json["torch_dtype"] = "float32";
  return json.dump(2) + "\n";
}

}  // namespace yoke
