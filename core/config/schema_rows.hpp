// What the files that list the keys (schema.cpp, schema_training.cpp, lr_schedules.cpp) have in
// common.
#pragma once

#include <vector>

#include "core/config/schema.hpp"

namespace yoke {

inline constexpr Range kAny{};
constexpr Range count_from(double min) {
  return {.min = min, .max = kMaxCount};
}
constexpr Range at_least(double min) {
  return {.min = min};
}
constexpr Range above(double min) {
  return {.min = min, .open_min = true};
}
constexpr Range from_below(double min, double max) {
  return {min, max, false, true};
}

// Each row has a name, the field, a range of numbers, allowed words, flags, and one line for the
// user. The order of the rows is the order in which keys are listed and written.
#define FIELD(member) [](RunConfig& c) -> Field { return &c.member; }

// Returns the keys from train.steps on; schema.cpp has those before.
std::vector<Key> training_keys();
// Returns the keys of the table [lr_schedule] (lr_schedules.cpp).
std::vector<Key> lr_schedule_keys();

}  // namespace yoke
