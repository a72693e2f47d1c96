#include "core/checkpoint/adapter.hpp"

#include <algorithm>
#include <filesystem>
#include <memory>
#include <nlohmann/json.hpp>
#include <set>

#include "core/base/files.hpp"
#include "core/base/strict_json.hpp"
#include "yoke/error.hpp"
#include "yoke/nearest.hpp"
#include "yoke/text.hpp"

namespace yoke {
namespace {

using Json = nlohmann::json;

constexpr uint64_t kMaxConfigBytes = 1 << 20;
constexpr char kWeight[] = ".weight", kA[] = ".lora_A.weight", kB[] = ".lora_B.weight";
constexpr char kPrefix[] = "base_model.model.";
constexpr std::string_view kInit = "init_lora_weights";

// Keys that change the mathematics, and the values for which Yoke has it. A key that is absent has
// one of them.
struct Allowed {
  const char* key;
  std::vector<Json> values;
};
const std::vector<Allowed>& checked_keys() {
  static const std::vector<Allowed> keys = {
      // PiSSA, OLoRA, CorDA, LoRA-GA and LoftQ change the weights of the model before the training,
      // so the adapter does not belong to the weights in the model's files.
      {"init_lora_weights", {true, false, "gaussian", "orthogonal", "eva", nullptr}},
      {"bias", {"none"}},
      {"use_dora", {false}},
      {"use_rslora", {false}},
      {"use_qalora", {false}},
      {"lora_bias", {false}},
      {"rank_pattern", {nullptr, Json::object()}},
      {"alpha_pattern", {nullptr, Json::object()}},
      {"layers_to_transform", {nullptr}},
      {"layer_replication", {nullptr}},
      {"exclude_modules", {nullptr}},
      {"modules_to_save", {nullptr, Json::array()}},
      {"target_parameters", {nullptr, Json::array()}},
      {"trainable_token_indices", {nullptr}},
  };
  return keys;
}

// Keys that are read elsewhere, or that do not change what a stored adapter computes.
const std::set<std::string>& other_keys() {
  static const std::set<std::string> keys = {"peft_type",       "r",
                                             "lora_alpha",      "target_modules",
                                             "fan_in_fan_out",  "auto_mapping",
                                             "revision",        "base_model_name_or_path",
                                             "inference_mode",  "task_type",
                                             "peft_version",    "lora_dropout",
                                             "layers_pattern",  "qalora_group_size",
                                             "megatron_config", "megatron_core",
                                             "loftq_config",    "eva_config",
                                             "corda_config",    "lora_ga_config",
                                             "runtime_config",  "ensure_weight_tying"};
  return keys;
}

std::string allowed_text(const std::vector<Json>& values) {
  std::vector<std::string> texts;
  for (const Json& value : values) texts.push_back(value.dump());
  return join(texts);
}

void check_keys(const Json& json, std::vector<std::string>& faults) {
  std::set<std::string> known = other_keys();
  for (const Allowed& allowed : checked_keys()) {
    known.insert(allowed.key);
    const auto at = json.find(allowed.key);
    if (at == json.end() ||
        std::find(allowed.values.begin(), allowed.values.end(), *at) != allowed.values.end())
      continue;
    faults.push_back(concat(allowed.key, " = ", at->dump(), "; allowed: ") +
                     allowed_text(allowed.values) + ", or no such key");
    if (allowed.key == kInit)
      faults.back() +=
          "; others may have changed the weights of the model: let PEFT convert the adapter with "
          "save_pretrained(..., path_initial_model_for_weight_conversion=...)";
  }
  // New versions of PEFT have new kinds of adapters, which are not used if their key is empty.
  for (const auto& [key, value] : json.items()) {
    if (known.contains(key) || value.is_null() || value == false || value == "" ||
        (value.is_structured() && value.empty()))
      continue;
    faults.push_back(concat(key, " = ", value.dump()) +
                     "; Yoke does not know this key, which may change what the adapter computes; "
                     "allowed: null, false, \"\", [], {}, or no such key");
  }
}

std::vector<std::string> targets_of(const Json& json, std::vector<std::string>& faults) {
  const auto at = json.find("target_modules");
  const bool is_list =
      at != json.end() && at->is_array() && !at->empty() &&
      std::all_of(at->begin(), at->end(), [](const Json& name) { return name.is_string(); });
  if (is_list) return at->get<std::vector<std::string>>();
  faults.push_back(concat("target_modules = ",
                          at == json.end() ? "(not given)" : at->dump(),
                          "; allowed: a list of names, such as [\"q_proj\", \"v_proj\"]"));
  return {};
}

std::string file_in(const std::string& folder) {
  return folder + "/" + kAdapterConfig;
}

}  // namespace

std::string adapter_config_text(const AdapterConfig& config, const std::string& base) {
  const nlohmann::ordered_json json = {
      {"peft_type", "LORA"},
      {"task_type", "CAUSAL_LM"},
      {"base_model_name_or_path",
       base.empty() ? nlohmann::ordered_json() : nlohmann::ordered_json(base)},
      {"r", config.rank},
      {"lora_alpha", config.alpha},
      {"target_modules", config.targets},
      {"lora_dropout", 0.0},
      {"bias", "none"},
      {"fan_in_fan_out", config.fan_in_fan_out},
      {"init_lora_weights", true},
      {"inference_mode", true}};
  return json.dump(2) + "\n";
}

AdapterConfig parse_adapter_config(const std::string& text, const std::string& where) {
  const Json json = parse_json_object(text, where);
  std::vector<std::string> faults;
  if (json.value("peft_type", Json()) != "LORA")
    faults.push_back(concat("peft_type = ", json.value("peft_type", Json()).dump()) +
                     "; allowed: \"LORA\"");
  AdapterConfig config;
  const auto rank = json.find("r"), alpha = json.find("lora_alpha");
  if (rank != json.end() && rank->is_number_integer()) config.rank = rank->get<int64_t>();
  if (config.rank < 1)
    faults.push_back(concat("r = ", rank == json.end() ? "(not given)" : rank->dump()) +
                     "; allowed: 1 and above");
  if (alpha != json.end() && alpha->is_number()) {
    config.alpha = alpha->get<double>();
  } else {
    faults.push_back(concat("lora_alpha = ", alpha == json.end() ? "(not given)" : alpha->dump()) +
                     "; allowed: a number");
  }
  config.targets = targets_of(json, faults);
  const auto transposed = json.find("fan_in_fan_out");
  if (transposed != json.end() && transposed->is_boolean()) {
    config.fan_in_fan_out = transposed->get<bool>();
  } else if (transposed != json.end()) {
    faults.push_back(concat("fan_in_fan_out = ", transposed->dump()) + "; allowed: true, false");
  }
  check_keys(json, faults);
  for (std::string& fault : faults) fault = where + ": " + fault;
  if (!faults.empty()) throw Error(YOKE_INVALID_ARGUMENT, join(faults, "\n"));
  return config;
}

AdapterConfig read_adapter_config(const std::string& folder) {
  if (!has_adapter_config(folder)) {
    throw Error(YOKE_NOT_FOUND,
                folder + " has no " + kAdapterConfig +
                    "; give a folder that PEFT's save_pretrained or `yoke checkpoint export "
                    "--adapter` has written");
  }
  return parse_adapter_config(read_text(file_in(folder), kMaxConfigBytes), file_in(folder));
}

bool has_adapter_config(const std::string& folder) {
  std::error_code ignored;
  return std::filesystem::exists(file_in(folder), ignored);
}

bool AdapterConfig::input_first(const std::string& weight) const {
  return fan_in_fan_out && weight != "lm_head.weight";
}

bool is_adapter_target(const std::string& name, const std::vector<std::string>& targets) {
  return std::any_of(targets.begin(), targets.end(), [&](const std::string& target) {
    return !target.empty() && ("." + name).ends_with("." + target);
  });
}

bool is_adapter(const std::string& param) {
  return param.ends_with(kA) || param.ends_with(kB);
}

std::string adapter_a(const std::string& weight) {
  return weight.substr(0, weight.rfind(kWeight)) + kA;
}

std::string adapter_b(const std::string& weight) {
  return weight.substr(0, weight.rfind(kWeight)) + kB;
}

std::string peft_name(const std::string& adapter) {
  return kPrefix + adapter;
}

ReadWeights open_adapter(const std::string& folder, const Shapes& shapes) {
  const auto files = std::make_shared<const HfWeights>(folder, kAdapterWeights);
  Shapes wanted;
  for (const auto& [name, shape] : shapes) wanted[peft_name(name)] = shape;
  require_same_shapes(wanted,
                      files->shapes(),
                      folder +
                          " has other adapters; check lora.rank and lora.targets of the run "
                          "file",
                      folder);
  return [files](const std::string& name, int64_t begin, int64_t count, float* dst) {
    files->read(peft_name(name), begin, count, dst);
  };
}

}  // namespace yoke
