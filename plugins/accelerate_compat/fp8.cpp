#include "plugins/accelerate_compat/fp8.hpp"

namespace yoke::accelerate_compat {
namespace {

constexpr const char* kPrecision = "mixed_precision";
constexpr const char* kProgram = "fp8_config.backend";

}  // namespace

bool wants_fp8(const AccelerateConfig& config) {
  return config.string(kPrecision) == "FP8";
}

bool wants_fp8_gather(const AccelerateConfig& config) {
  return wants_fp8(config) && config.boolean(kFp8Gather).value_or(false);
}

void check_fp8(const AccelerateConfig& config, PlanMessages& messages) {
  if (!wants_fp8(config)) {
    for (const char* key : {kProgram, kFp8Gather}) {
      if (!config.is_given(key)) continue;
      messages.push_back({config.label(key),
                          config.shown(key),
                          "",
                          "no effect: it applies only with mixed_precision fp8",
                          true});
    }
    return;
  }
  if (config.string(kProgram).value_or("AO") != "AO") {
    messages.push_back(
        {config.label(kProgram),
         config.shown(kProgram),
         "AO",
         "TransformerEngine computes scales from earlier steps, and MS-AMP also keeps "
         "gradients and moments in fp8; neither exists here"});
  }
}

// Accelerate does not convert the first linear layer of a model and the last one.
std::vector<const char*> fp8_lines(const AccelerateConfig& config) {
  if (!wants_fp8(config)) return {};
  return {"precision.product = \"fp8\"",
          "precision.fp8_recipe = \"tensorwise\"",
          "precision.fp8_skip = [\"layers.0.self_attn.q_proj\", \"lm_head\"]"};
}

}  // namespace yoke::accelerate_compat
