// The learning-rate schedules that train.schedule names, and the keys that each of them reads.
// Their formulas are in core/run/learning_rate.hpp. No LibTorch.
#pragma once

#include <span>
#include <string_view>
#include <vector>

namespace yoke {

struct LrSchedule {
  std::string_view name;  // value of train.schedule
  // Names of the keys of the table [lr_schedule] that have an effect.
  std::vector<std::string_view> keys;

  bool reads(std::string_view key) const;
};

std::span<const LrSchedule> lr_schedules();
// Returns NULL if there is no schedule with this name.
const LrSchedule* find_lr_schedule(std::string_view name);

}  // namespace yoke
