#include "core/config/lr_schedules.hpp"

#include <algorithm>

namespace yoke {

std::span<const LrSchedule> lr_schedules() {
  static const std::vector<LrSchedule> all{
      {"constant", {"lr_schedule.first_step", "lr_schedule.start_factor"}},
      {"linear",
       {"train.min_lr_factor",
        "lr_schedule.first_step",
        "lr_schedule.start_factor",
        "lr_schedule.total_steps"}},
      {"cosine",
       {"train.min_lr_factor",
        "lr_schedule.first_step",
        "lr_schedule.start_factor",
        "lr_schedule.total_steps",
        "lr_schedule.cycles"}},
      {"cosine_restarts",
       {"train.min_lr_factor",
        "lr_schedule.first_step",
        "lr_schedule.start_factor",
        "lr_schedule.total_steps",
        "lr_schedule.cycles"}},
      {"polynomial",
       {"train.min_lr_factor",
        "lr_schedule.first_step",
        "lr_schedule.start_factor",
        "lr_schedule.total_steps",
        "lr_schedule.power"}},
      {"inverse_sqrt",
       {"lr_schedule.first_step", "lr_schedule.start_factor", "lr_schedule.timescale"}},
      {"wsd",
       {"train.min_lr_factor",
        "lr_schedule.first_step",
        "lr_schedule.start_factor",
        "lr_schedule.total_steps",
        "lr_schedule.decay_steps",
        "lr_schedule.decay_shape"}},
      {"WarmupLR", {"lr_schedule.start_factor", "lr_schedule.warmup_shape"}},
      {"WarmupDecayLR",
       {"lr_schedule.start_factor", "lr_schedule.warmup_shape", "lr_schedule.total_steps"}},
      {"WarmupCosineLR",
       {"train.min_lr_factor",
        "lr_schedule.start_factor",
        "lr_schedule.warmup_shape",
        "lr_schedule.total_steps"}},
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

const LrSchedule* find_lr_schedule(std::string_view name) {
  const auto all = lr_schedules();
  const auto at = std::find_if(
      all.begin(), all.end(), [&](const LrSchedule& schedule) { return schedule.name == name; });
  return at == all.end() ? nullptr : &*at;
}

namespace {

constexpr Range kAny{};
constexpr Range kShare{.min = 0, .max = 1};
constexpr Range kCount{.min = 0, .max = kMaxCount};
constexpr Range kAtLeastOne{.min = 1, .max = kMaxCount};
constexpr Range kNotNegative{.min = 0};
constexpr Range kPositive{.min = 0, .open_min = true};

}  // namespace

#define FIELD(member) [](RunConfig& c) -> Field { return &c.lr_schedule.member; }

std::vector<Key> lr_schedule_keys() {
  return {
      {"lr_schedule.first_step",
       FIELD(first_step),
       kShare,
       "",
       0,
       "number of the first step in the warmup: 1 as in torchtitan, so that no step has a rate of "
       "0, or 0 as in transformers"},
      {"lr_schedule.start_factor",
       FIELD(start_factor),
       kShare,
       "",
       0,
       "learning rate at the start of the warmup, or of OneCycle, as a fraction of train.lr"},
      {"lr_schedule.warmup_shape",
       FIELD(warmup_shape),
       kAny,
       "linear|log",
       0,
       "shape of the warmup of WarmupLR, WarmupDecayLR and WarmupCosineLR"},
      {"lr_schedule.total_steps",
       FIELD(total_steps),
       kAtLeastOne,
       "",
       0,
       "number of steps after which the schedule ends; unset = train.steps"},
      {"lr_schedule.cycles",
       FIELD(cycles),
       kPositive,
       "",
       0,
       "cosine: number of whole waves, 0.5 if unset; cosine_restarts: number of falls, 1 if unset"},
      {"lr_schedule.power",
       FIELD(power),
       kPositive,
       "",
       0,
       "polynomial: exponent of the remaining share of the steps"},
      {"lr_schedule.timescale",
       FIELD(timescale),
       kAtLeastOne,
       "",
       0,
       "inverse_sqrt: steps in which the rate falls by the factor 1 / sqrt(2); unset = "
       "train.warmup, or 10000 without a warmup"},
      {"lr_schedule.decay_steps",
       FIELD(decay_steps),
       kCount,
       "",
       0,
       "wsd: number of steps of the decay at the end; unset = a fifth of the steps"},
      {"lr_schedule.decay_shape",
       FIELD(decay_shape),
       kAny,
       "linear|cosine|sqrt",
       0,
       "wsd: shape of the decay"},
      {"lr_schedule.rise_steps",
       FIELD(rise_steps),
       kAtLeastOne,
       "",
       0,
       "OneCycle: number of steps in which the rate rises"},
      {"lr_schedule.fall_steps",
       FIELD(fall_steps),
       kCount,
       "",
       0,
       "OneCycle: number of steps in which the rate falls again; unset = lr_schedule.rise_steps"},
      {"lr_schedule.rise_stairs",
       FIELD(rise_stairs),
       kCount,
       "",
       0,
       "OneCycle: number of equal stairs of the rise; 0 = none"},
      {"lr_schedule.fall_stairs",
       FIELD(fall_stairs),
       kCount,
       "",
       0,
       "OneCycle: number of equal stairs of the fall; unset = lr_schedule.rise_stairs"},
      {"lr_schedule.tail_steps",
       FIELD(tail_steps),
       kCount,
       "",
       0,
       "OneCycle: steps after the cycle that count as one decay; 0 = the rate does not change any "
       "more"},
      {"lr_schedule.tail_rate",
       FIELD(tail_rate),
       kNotNegative,
       "",
       0,
       "OneCycle: after n decays the rate is divided by 1 + n times this number"},
      {"lr_schedule.range_steps",
       FIELD(range_steps),
       kAtLeastOne,
       "",
       0,
       "LRRangeTest: number of steps in which the rate rises by lr_schedule.range_rate times "
       "train.lr"},
      {"lr_schedule.range_rate",
       FIELD(range_rate),
       kPositive,
       "",
       0,
       "LRRangeTest: increase of the rate in lr_schedule.range_steps steps, as a fraction of "
       "train.lr"},
      {"lr_schedule.staircase",
       FIELD(staircase),
       kAny,
       "",
       0,
       "LRRangeTest: the rate rises once in lr_schedule.range_steps steps, not in each step"},
  };
}

#undef FIELD

}  // namespace yoke
