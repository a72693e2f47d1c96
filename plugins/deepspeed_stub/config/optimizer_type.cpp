#include "plugins/deepspeed_stub/config/optimizer_type.hpp"

#include <algorithm>
#include <cctype>
#include <utility>

#include "yoke/optimizer.h"
#include "yoke/optimizer_name.hpp"
#include "yoke/text.hpp"

namespace yoke::deepspeed_stub {
namespace {

constexpr const char* kType = "optimizer.type";
constexpr const char* kMode = "optimizer.params.adam_w_mode";
constexpr const char* kTorch = "optimizer.params.torch_adam";
constexpr const char* kCorrection = "optimizer.params.bias_correction";

// DeepSpeed ignores case.
std::string lower(std::string type) {
  std::transform(
      type.begin(), type.end(), type.begin(), [](unsigned char c) { return std::tolower(c); });
  return type;
}

// Returns the type as DeepSpeed reads it; "" if the file does not give it.
std::string type_of(const DsConfig& config) {
  return lower(config.string(kType).value_or(""));
}

bool is_adam(const std::string& type) {
  return type == "adam" || type == "adamw";
}

// Returns the optimizer of the run in the words of a run file.
std::string name_of(const YokeOptimizer& run) {
  if (yoke_is_lion(run.kind)) return "lion";
  return run.kind == YOKE_ADAM || run.kind == YOKE_ADAM_UNCORRECTED ? "adam" : "adamw";
}

bool corrects(const YokeOptimizer& run) {
  return run.kind == YOKE_ADAMW || run.kind == YOKE_ADAM;
}

// Refuses a key of the ds_config that means something else than a line of the run file.
void refuse(const DsConfig& config,
            const char* path,
            const std::string& allowed,
            const std::string& line,
            PlanMessages& messages) {
  messages.push_back(
      {config.label(path),
       config.shown(path),
       allowed,
       concat("the run has ",
              line,
              "; change one of them: the run file decides what all backends share")});
}

void compare(const DsConfig& config, const YokeOptimizer& run, PlanMessages& messages) {
  const auto [optimizer, correction] = optimizer_type(config);
  const std::string own = name_of(run), line = concat("train.optimizer = \"", own, "\"");
  if (optimizer && *optimizer != own) {
    // The type Adam means one or the other, so the parameter that decides is named.
    const std::string type_given = type_of(config);
    const bool is_mode = own != "lion" && (type_given == "adam" || type_given.empty());
    const char* type = own == "lion"   ? "\"Lion\""
                       : own == "adam" ? "\"Adam\" with adam_w_mode = false"
                                       : "\"AdamW\"";
    if (is_mode) {
      refuse(config, kMode, own == "adam" ? "false" : "true", line, messages);
    } else {
      refuse(config, kType, type, line, messages);
    }
  }
  if (correction && yoke_is_adam(run.kind) && *correction != corrects(run)) {
    const char* value = corrects(run) ? "true" : "false";
    refuse(config, kCorrection, value, concat("train.bias_correction = ", value), messages);
  }
}

// DeepSpeed passes all parameters to the constructor, which accepts only its own.
void refuse_params_of_adam(const DsConfig& config, PlanMessages& messages) {
  for (const char* path : {kMode, kCorrection, "optimizer.params.eps"}) {
    if (config.find(path) == nullptr) continue;
    messages.push_back({config.label(path),
                        config.shown(path),
                        "unset",
                        "DeepSpeed's Lion has no such parameter"});
  }
}

}  // namespace

bool has_optimizer(std::string type) {
  type = lower(std::move(type));
  return is_adam(type) || type == "lion";
}

OptimizerType optimizer_type(const DsConfig& config) {
  const std::string type = type_of(config);
  if (type == "lion") return {"lion", std::nullopt};
  if (type.empty() && !config.boolean(kMode)) return {std::nullopt, config.boolean(kCorrection)};
  if (!type.empty() && !is_adam(type)) return {};
  const bool decoupled = type == "adamw" || config.boolean(kMode).value_or(true);
  return {decoupled ? "adamw" : "adam", config.boolean(kCorrection).value_or(true)};
}

bool uses_default(const DsConfig& config, std::string_view path) {
  if (!config.has_file() || config.find(path) != nullptr || config.is_auto(path)) return false;
  if (path == "gradient_clipping") return true;
  const auto type = optimizer_type(config).optimizer;
  if (!type || config.find("optimizer.type") == nullptr) return false;
  if (!path.starts_with("optimizer.params.")) return false;
  return type != "lion" || path != "optimizer.params.eps";
}

std::string_view default_of(const DsConfig& config, std::string_view path) {
  const bool is_torch_adamw =
      config.boolean(kTorch) == true && optimizer_type(config).optimizer == "adamw";
  if (is_torch_adamw && path == "optimizer.params.weight_decay") return "0.01";
  return find_key(path)->value;
}

void check_optimizer(const DsConfig& config, const YokeOptimizer& run, PlanMessages& messages) {
  const std::string type = type_of(config);
  if (!type.empty() && !has_optimizer(type)) {
    messages.push_back({config.label(kType),
                        config.shown(kType),
                        "\"AdamW\", \"Adam\", \"Lion\"",
                        "no other optimizer of DeepSpeed is supported"});
  }
  if (type == "lion") refuse_params_of_adam(config, messages);
  if (yoke_is_adam(run.kind) || yoke_is_lion(run.kind)) {
    compare(config, run, messages);
  } else {
    messages.push_back({"train.optimizer",
                        yoke::optimizer_name(run.kind),
                        "adamw, adam, lion",
                        "deepspeed_stub has no other optimizer"});
  }
}

}  // namespace yoke::deepspeed_stub
