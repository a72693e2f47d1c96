#include "core/config/lr_schedules.hpp"

#include <algorithm>

#include "core/config/schema_rows.hpp"

namespace yoke {

std::span<const LrSchedule> lr_schedules() {
  static const std::vector<LrSchedule> all{
      {"constant", {"lr_schedule.first_step", "lr_schedule.start_factor"}},
      {"linear", {"lr_schedule.first_step", "lr_schedule.start_factor", "lr_schedule.total_steps"}},
      {"cosine",
       {"lr_schedule.first_step",
        "lr_schedule.start_factor",
        "lr_schedule.total_steps",
        "lr_schedule.cycles"}},
      {"cosine_restarts",
       {"lr_schedule.first_step",
        "lr_schedule.start_factor",
        "lr_schedule.total_steps",
        "lr_schedule.cycles"}},
      {"polynomial",
       {"lr_schedule.first_step",
        "lr_schedule.start_factor",
        "lr_schedule.total_steps",
        "lr_schedule.power"}},
      {"inverse_sqrt",
       {"lr_schedule.first_step", "lr_schedule.start_factor", "lr_schedule.timescale"}},
      {"wsd",
       {"lr_schedule.first_step",
        "lr_schedule.start_factor",
        "lr_schedule.total_steps",
        "lr_schedule.decay_steps",
        "lr_schedule.decay_shape"}},
      {"WarmupLR", {"lr_schedule.start_factor", "lr_schedule.warmup_shape"}},
      {"WarmupDecayLR",
       {"lr_schedule.start_factor", "lr_schedule.warmup_shape", "lr_schedule.total_steps"}},
      {"WarmupCosineLR",
       {"lr_schedule.start_factor", "lr_schedule.warmup_shape", "lr_schedule.total_steps"}},
      {"OneCycle",
       {"lr_schedule.start_factor",
        "lr_schedule.rise_steps",
        "lr_schedule.fall_steps",
        "lr_schedule.rise_stairs",
        "lr_schedule.fall_stairs",
        "lr_schedule.tail_steps",
        "lr_schedule.tail_rate"}},
      {"LRRangeTest",
       {"lr_schedule.range_steps", "lr_schedule.range_rate", "lr_schedule.staircase"}},
  };
  return all;
}

bool LrSchedule::reads(std::string_view key) const {
  return std::find(keys.begin(), keys.end(), key) != keys.end();
}

const LrSchedule* find_lr_schedule(std::string_view name) {
  const auto all = lr_schedules();
  const auto at = std::find_if(
      all.begin(), all.end(), [&](const LrSchedule& schedule) { return schedule.name == name; });
  return at == all.end() ? nullptr : &*at;
}

std::vector<Key> lr_schedule_keys() {
  return {
      {"lr_schedule.first_step",
       FIELD(lr_schedule.first_step),
       Range{0, 1},
       "",
       kTunable,
       "number of the first step in the warmup: 1 as in torchtitan, so that no step has a rate of "
       "0, or 0 as in transformers"},
      {"lr_schedule.start_factor",
       FIELD(lr_schedule.start_factor),
       Range{0, 1},
       "",
       kTunable,
       "learning rate at the start of the warmup, or of OneCycle, as a fraction of train.lr"},
      {"lr_schedule.warmup_shape",
       FIELD(lr_schedule.warmup_shape),
       kAny,
       "linear|log",
       kTunable,
       "shape of the warmup of WarmupLR, WarmupDecayLR and WarmupCosineLR"},
      {"lr_schedule.total_steps",
       FIELD(lr_schedule.total_steps),
       count_from(1),
       "",
       kTunable,
       "number of steps after which the schedule ends; unset = train.steps"},
      {"lr_schedule.cycles",
       FIELD(lr_schedule.cycles),
       above(0),
       "",
       kTunable,
       "cosine: number of whole waves, 0.5 if unset; cosine_restarts: number of falls, 1 if unset"},
      {"lr_schedule.power",
       FIELD(lr_schedule.power),
       above(0),
       "",
       kTunable,
       "polynomial: exponent of the remaining share of the steps"},
      {"lr_schedule.timescale",
       FIELD(lr_schedule.timescale),
       count_from(1),
       "",
       kTunable,
       "inverse_sqrt: steps in which the rate falls by the factor 1 / sqrt(2); unset = "
       "train.warmup, or 10000 without a warmup"},
      {"lr_schedule.decay_steps",
       FIELD(lr_schedule.decay_steps),
       count_from(0),
       "",
       kTunable,
       "wsd: number of steps of the decay at the end; unset = a fifth of the steps"},
      {"lr_schedule.decay_shape",
       FIELD(lr_schedule.decay_shape),
       kAny,
       "linear|cosine|sqrt|exponential",
       kTunable,
       "wsd: shape of the decay"},
      {"lr_schedule.rise_steps",
       FIELD(lr_schedule.rise_steps),
       count_from(1),
       "",
       kTunable,
       "OneCycle: number of steps in which the rate rises"},
      {"lr_schedule.fall_steps",
       FIELD(lr_schedule.fall_steps),
       count_from(0),
       "",
       kTunable,
       "OneCycle: number of steps in which the rate falls again; unset = lr_schedule.rise_steps"},
      {"lr_schedule.rise_stairs",
       FIELD(lr_schedule.rise_stairs),
       count_from(0),
       "",
       kTunable,
       "OneCycle: number of equal stairs of the rise; 0 = none"},
      {"lr_schedule.fall_stairs",
       FIELD(lr_schedule.fall_stairs),
       count_from(0),
       "",
       kTunable,
       "OneCycle: number of equal stairs of the fall; unset = lr_schedule.rise_stairs"},
      {"lr_schedule.tail_steps",
       FIELD(lr_schedule.tail_steps),
       count_from(0),
       "",
       kTunable,
       "OneCycle: steps after the cycle that count as one decay; 0 = the rate does not change any "
       "more"},
      {"lr_schedule.tail_rate",
       FIELD(lr_schedule.tail_rate),
       at_least(0),
       "",
       kTunable,
       "OneCycle: after n decays the rate is divided by 1 + n times this number"},
      {"lr_schedule.range_steps",
       FIELD(lr_schedule.range_steps),
       count_from(1),
       "",
       kTunable,
       "LRRangeTest: number of steps in which the rate rises by lr_schedule.range_rate times "
       "train.lr"},
      {"lr_schedule.range_rate",
       FIELD(lr_schedule.range_rate),
       above(0),
       "",
       kTunable,
       "LRRangeTest: increase of the rate in lr_schedule.range_steps steps, as a fraction of "
       "train.lr"},
      {"lr_schedule.staircase",
       FIELD(lr_schedule.staircase),
       kAny,
       "",
       kTunable,
       "LRRangeTest: the rate rises once in lr_schedule.range_steps steps, not in each step"},
  };
}

}  // namespace yoke
