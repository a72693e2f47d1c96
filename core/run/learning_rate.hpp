// The learning rate of each step. No LibTorch.
#pragma once

#include <cstdint>

#include "core/config/run_config.hpp"

namespace yoke {

// Returns the learning rate of `step`; the first step is 1. With T = train.steps and
// w = train.warmup, it is
//
//   step <= w   lr * step / w
//   step > w    lr * (m + (1 - m) * f(p)), with m = train.min_lr_factor and
//               p = (step - 1 - start) / (T - start), or 0 while step <= start + 1
//     constant  f = 1
//     linear    f = 1 - p                 start = w
//     cosine    f = (1 + cos(pi p)) / 2   start = w
//     wsd       f = 1 - p                 start = T - D, where D is a fifth of T
//
// As in torchtitan, the rate would reach its final value only at step T + 1, so no step is wasted
// on a rate of 0. The rate depends on the step alone, so a resumed run continues exactly. Throws
// Error(INVALID_ARGUMENT) if the name of the lr schedule is unknown or step < 1.
double learning_rate(const TrainConfig& train, int64_t step);

}  // namespace yoke
