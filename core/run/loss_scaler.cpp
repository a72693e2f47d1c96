// Both rules count the steps since the last overflow and double the scale if the number is a
// multiple of the window. GradScaler counts the current step, DeepSpeed only those before it. Apart
// from that, GradScaler is DeepSpeed with hysteresis = 1 and no minimum. So one function serves
// both. DeepSpeed has two rules: its FP16_Optimizer, which scales at ZeRO stage 0, has no
// hysteresis and skips steps at the minimum, where DynamicLossScaler ends the run.
#include "core/run/loss_scaler.hpp"

#include <algorithm>
#include <cmath>

namespace yoke {
namespace {

constexpr double kFactor = 2;  // factor by which the scale grows and falls
// A scale above this number would be infinite in the fp32 arithmetic of some backends.
constexpr double kLargest = 0x1p127;

}  // namespace

LossScaler::LossScaler(const LossScaleConfig& config) : config_(config) {
  if (config.rule != "deepspeed") config_.hysteresis = 1;
  if (config.rule == "grad_scaler") config_.min = 0;
  const bool fixed = config.fixed > 0;
  state_.scale = fixed ? config.fixed : std::ldexp(1, static_cast<int>(config.initial_power));
  state_.hysteresis = config_.hysteresis;
}

bool LossScaler::update(bool overflowed) {
  if (config_.fixed > 0) {
    state_.skipped += overflowed ? 1 : 0;
    return true;
  }
  if (overflowed) {
    if (state_.hysteresis > 1) {
      --state_.hysteresis;
    } else if (state_.scale == config_.min && config_.rule != "fp16_optimizer") {
      return false;
    } else {
      state_.scale = std::max(state_.scale / kFactor, config_.min);
    }
    state_.good_steps = 0;
    ++state_.skipped;
    return true;
  }
  if (config_.consecutive_hysteresis) state_.hysteresis = config_.hysteresis;
  const int64_t before = state_.good_steps++;
  const int64_t counted = config_.rule == "grad_scaler" ? before + 1 : before;
  if (counted == 0 || counted % config_.window != 0) return true;
  state_.hysteresis = config_.hysteresis;
  state_.scale = std::min(state_.scale * kFactor, kLargest);
  return true;
}

void LossScaler::restore(const LossScaleState& state) {
  const double fixed = config_.fixed;
  state_ = state;
  state_.hysteresis = std::min(state.hysteresis, config_.hysteresis);
  if (fixed > 0) state_.scale = fixed;
}

}  // namespace yoke
