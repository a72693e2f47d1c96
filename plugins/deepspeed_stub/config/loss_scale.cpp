// At ZeRO stages 1 to 3 DeepSpeed scales with its DynamicLossScaler, at stage 0 with its
// FP16_Optimizer or FP16_UnfusedOptimizer, which have one rule. Each has its rule in a run file.
#include "plugins/deepspeed_stub/config/loss_scale.hpp"

#include <algorithm>
#include <iterator>

namespace yoke::deepspeed_stub {
namespace {

using Json = nlohmann::json;

struct Setting {
  const char* path;  // path in the ds_config
  const char* key;   // key of the run file
};

// The settings of a dynamic scale. Their defaults are in the table of keys.
constexpr Setting kDynamic[] = {
    {"fp16.initial_scale_power", "loss_scale.initial_power"},
    {"fp16.loss_scale_window", "loss_scale.window"},
    {"fp16.hysteresis", "loss_scale.hysteresis"},
    {"fp16.consecutive_hysteresis", "loss_scale.consecutive_hysteresis"},
    {"fp16.min_loss_scale", "loss_scale.min"}};

bool is_hysteresis(std::string_view path) {
  return path == "fp16.hysteresis" || path == "fp16.consecutive_hysteresis";
}

// Returns whether the file has a block fp16 without saying whether it is enabled.
bool has_settings(const DsConfig& config) {
  return config.is_auto("fp16.enabled") || config.find("fp16.loss_scale") != nullptr ||
         std::any_of(std::begin(kDynamic), std::end(kDynamic), [&](const Setting& setting) {
           return config.find(setting.path) != nullptr;
         });
}

HostKey host_key(const DsConfig& config, const Setting& setting) {
  const Key& key = *find_key(setting.path);
  const Json* given = config.find(setting.path);
  Json value = given != nullptr ? *given : Json::parse(key.value);
  if (key.form == Form::kInt) value = value.get<int64_t>();
  if (key.form == Form::kNumber) value = value.get<double>();
  return {setting.path, setting.key, std::move(value)};
}

}  // namespace

std::vector<HostKey> loss_scale_keys(const DsConfig& config, int32_t param_dtype) {
  if (!config.boolean("fp16.enabled").value_or(param_dtype == YOKE_F16 && has_settings(config)))
    return {};
  std::vector<HostKey> keys{host_key(config, {"fp16.loss_scale", "loss_scale.static"})};
  // A static scale ignores all other settings.
  if (keys.front().value.get<double>() > 0) return keys;
  const bool unpartitioned = config.zero_stage() == 0;
  keys.push_back({unpartitioned ? "zero_optimization.stage" : "fp16.enabled",
                  "loss_scale.rule",
                  unpartitioned ? "fp16_optimizer" : "deepspeed"});
  for (const Setting& setting : kDynamic) {
    if (config.is_auto(setting.path) || lacks_hysteresis(config, setting.path)) continue;
    keys.push_back(host_key(config, setting));
  }
  return keys;
}

bool lacks_hysteresis(const DsConfig& config, std::string_view path) {
  return config.zero_stage() == 0 && is_hysteresis(path);
}

void note_hysteresis(const DsConfig& config,
                     const std::vector<HostKey>& loss_scale,
                     PlanMessages& messages) {
  if (loss_scale.size() <= 1) return;  // no scale, or a static one
  for (const Setting& setting : kDynamic) {
    if (!lacks_hysteresis(config, setting.path) || config.find(setting.path) == nullptr) continue;
    messages.push_back({config.label(setting.path),
                        config.shown(setting.path),
                        "",
                        "no effect at ZeRO stage 0: DeepSpeed's FP16_Optimizer halves the loss "
                        "scale with every overflow",
                        true});
  }
}

}  // namespace yoke::deepspeed_stub
