// The scale of the loss in fp16 runs: the gradients of fp16 activations are multiplied by it, so
// that small ones do not become zero. It falls when gradients overflow, and grows again later, by
// a rule of DeepSpeed or by that of PyTorch's GradScaler with its default factors.
//
//   LossScaler scaler(config);
//   ... a step with the factor scaler.scale() ...
//   scaler.update(overflowed);
//
// Pure arithmetic without LibTorch: every rank calls it with the same results of the same steps, so
// all ranks have the same scale without any communication.
#pragma once

#include "core/checkpoint/checkpoint.hpp"
#include "core/config/run_config.hpp"

namespace yoke {

// Used by one thread at a time.
class LossScaler {
 public:
  explicit LossScaler(const LossScaleConfig& config);

  // Returns the factor of the loss in the next step.
  double scale() const { return state_.scale; }

  // Advances by one step. overflowed: whether its gradients were not finite, so that it was
  // skipped.
  //
  // "grad_scaler": a step that overflows halves the scale; `window` steps without an overflow
  // double it.
  //
  // "deepspeed": a step that overflows halves the scale, but not below `min`, once `hysteresis`
  // overflows have occurred since the scale last doubled (with consecutive_hysteresis: since the
  // last step that did not overflow). It doubles after window + 1 steps without an overflow, and
  // then after every further `window` steps.
  //
  // "fp16_optimizer": "deepspeed" with a hysteresis of 1. A step that overflows at `min` leaves the
  // scale as it is.
  //
  // Returns false, and changes nothing, if the scale would have to fall although it is at `min`
  // already, except with "fp16_optimizer".
  bool update(bool overflowed);

  // Return and set what a checkpoint keeps. A static scale stays that of the configuration.
  const LossScaleState& state() const { return state_; }
  void restore(const LossScaleState& state);

 private:
  LossScaleConfig config_;
  LossScaleState state_;
};

}  // namespace yoke
