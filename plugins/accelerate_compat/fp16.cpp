#include "plugins/accelerate_compat/fp16.hpp"

namespace yoke::accelerate_compat {

std::vector<const char*> fp16_lines(const AccelerateConfig& config) {
  if (config.string("mixed_precision") != "FP16") return {};
  return {"loss_scale.static = 0.0",
          "loss_scale.rule = \"grad_scaler\"",
          "loss_scale.initial_power = 16",
          "loss_scale.window = 2000"};
}

}  // namespace yoke::accelerate_compat
