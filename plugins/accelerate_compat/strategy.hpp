// Derives a strategy from an Accelerate config and the degrees of a run: the engine, the degrees,
// and the options of the inner backend. No function here communicates or uses LibTorch.
#pragma once

#include <array>
#include <cstdint>
#include <string_view>
#include <vector>

#include "plugins/accelerate_compat/fsdp.hpp"
#include "yoke/parallel_backend.h"

namespace yoke::accelerate_compat {

// The backend that runs everything except for DDP.
inline constexpr const char* kInner = "ptd";

struct Strategy {
  enum Engine {
    kDdp,      // this plugin's own DDP
    kSharded,  // the inner backend
  } engine = kDdp;
  std::array<int32_t, YOKE_NUM_AXES> degree{};
  // Key::name() of the key that sets each degree; "" = none does.
  std::array<std::string_view, YOKE_NUM_AXES> from{};
  std::vector<InnerOption> options;  // options of the inner backend
};

// Returns how a strategy other than kDdp is delegated.
inline compat::Delegation delegation_of(const Strategy& strategy) {
  return {kInner, "accelerate_compat", strategy.options};
}

// Chooses the strategy. plan: gives the degrees that the run sets (0 = unset), its world size and
// its dtype. Refusals and notes are added to `messages`; after a refusal the strategy is a best
// guess, so that more problems can be found.
Strategy choose_strategy(const AccelerateConfig& config,
                         const YokePlan& plan,
                         PlanMessages& messages);

}  // namespace yoke::accelerate_compat
