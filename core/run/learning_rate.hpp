// The learning rate of each step. No LibTorch.
#pragma once

#include <cstdint>

#include "core/config/run_config.hpp"

namespace yoke {

// The learning rate of `step` (1 is the first) of a run of T = steps, w = warmup:
//
//   step <= w   lr * step / w
//   then        lr * (m + (1 - m) * f(p)), m = train.min_lr_factor,
//               p = (step - 1 - start) / (T - start), 0 while step <= start + 1
//     constant  f = 1
//     linear    f = 1 - p                 start = w
//     cosine    f = (1 + cos(pi p)) / 2   start = w
//     wsd       f = 1 - p                 start = T - D: the last D steps, a fifth of T
//
// As in torchtitan the end value belongs to the step after the last, so that no step is wasted on a
// rate of 0. The rate depends on nothing but the step, so that a resumed run goes on exactly.
// INVALID_ARGUMENT if the schedule's name is unknown or step < 1.
double learning_rate(const TrainConfig& train, int64_t step);

}  // namespace yoke
