// The learning rate of each step. No LibTorch.
#pragma once

#include <cstdint>

#include "core/config/run_config.hpp"

namespace yoke {

// Returns the learning rate of `step`; the first step is 1. It is train.lr times a factor that
// depends on the step alone, so a resumed run continues exactly. Names without a dot are those of
// the table [lr_schedule]. With w = train.warmup, T = total_steps (default train.steps),
// k = step - 1, s = start_factor and m = train.min_lr_factor, the factor is
//
//   k < w       s + (1 - s) (k + first_step) / w
//   otherwise   m + (1 - m) f, where p = (k - w) / (T - w), at most 1
//     constant         1, whatever m is
//     linear           f = 1 - p
//     cosine           f = (1 + cos(2 pi cycles p)) / 2; cycles is 1/2 by default
//     cosine_restarts  f = (1 + cos(pi fraction(cycles p))) / 2, or 0 if p = 1; cycles is 1 by
//                      default
//     polynomial       f = (1 - p)^power
//     inverse_sqrt     1 / sqrt(1 + (k - w) / timescale), whatever m is; timescale is w by default,
//                      or 10000 without a warmup
//     wsd              f = 1 until k = T - decay_steps. Then q rises from 0 to 1 until k = T, and
//                      by decay_shape f is 1 - q, (1 + cos(pi q)) / 2, 1 - sqrt(q) or
//                      2 * 0.5^q - 1. By default decay_steps is a fifth of T. The decay never
//                      starts before the end of the warmup
//
// With first_step = 1, the default, step w is the first one whose factor is 1. With first_step = 0,
// as in transformers, the first step has the factor s, and step w + 1 is the first one whose factor
// is 1. In both cases the rate would reach its final value at step T + 1.
//
// DeepSpeed's schedules keep their names. The first three use i = step - 2, because DeepSpeed
// advances them after the update; the others use k. By warmup_shape, g is i / w or
// log(i + 1) / log(w), with w at least 2.
//
//   WarmupLR        s + (1 - s) g, where g is 0 for the first step and 1 after the warmup
//   WarmupDecayLR   the same, where g is (T - i) / (T - w), at least 0, after the warmup
//   WarmupCosineLR  the same, except 0 for the first step, and after the warmup
//                   m + (1 - m) (1 + cos(pi min(1, (i - w + 1) / (T - w)))) / 2
//   OneCycle        s + (1 - s) h, where h rises to 1 over rise_steps and falls over fall_steps, in
//                   rise_stairs and fall_stairs equal stairs unless they are 0;
//                   j > 0 steps after this cycle s / (1 + tail_rate j / tail_steps), or s if
//                   tail_steps is 0
//   LRRangeTest     1 + range_rate k / range_steps; with staircase, k / range_steps is rounded down
//
// Throws Error(INVALID_ARGUMENT) if the name of the schedule is unknown or step < 1.
double learning_rate(const TrainConfig& train, const LrScheduleConfig& lr, int64_t step);

}  // namespace yoke
