// From an Accelerate config and the degrees of a run to what shall be done: which engine, which
// degrees, which options of the inner backend. Pure; no LibTorch.
#pragma once

#include <array>
#include <cstdint>
#include <string_view>
#include <vector>

#include "plugins/accelerate_compat/fsdp.hpp"
#include "yoke/parallel_backend.h"

namespace yoke::accelerate_compat {

struct Strategy {
  enum Engine { kDdp, kSharded } engine = kDdp;        // here, or by the inner backend
  std::array<int32_t, YOKE_NUM_AXES> degree{};         // 0 = not decided, after a fault
  std::array<std::string_view, YOKE_NUM_AXES> from{};  // Key::name() of what says so; "" = nobody
  std::vector<InnerOption> options;
};

// plan: the run's own degrees and world size. Adds every fault, and what the user should know, to
// messages.
Strategy choose_strategy(const AccelerateConfig& config,
                         const YokePlan& plan,
                         PlanMessages& messages);

}  // namespace yoke::accelerate_compat
