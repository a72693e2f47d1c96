// The inner backend, ptd, to which everything except for DDP is delegated. It is opened through the
// host's service "yoke.backends/1", gets its options from the Accelerate config, and is then called
// as by a host. This file does not use LibTorch.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "plugins/accelerate_compat/strategy.hpp"
#include "yoke/inner.hpp"

namespace yoke::accelerate_compat {

// The constructors throw Error if the host cannot open backends, or cannot open this one. The first
// constructor is used to make a plan. The second one is used on a rank of a run, and is collective.
class Inner {
 public:
  explicit Inner(const YokePlanArgs& args) : inner_(args, kName) {}
  explicit Inner(const YokeHost& host) : inner_(host, kName, YOKE_ALL_AXES) {}

  // Sets the options. If section [ptd] of the run file gives a different value for one of them,
  // adds a refusal to `messages`.
  void set(const std::vector<InnerOption>& options,
           const AccelerateConfig& config,
           PlanMessages& messages);

  // Lets the inner backend complete the plan. Its notes are passed to the host, its refusals to
  // `report`. If it refuses a degree that the config sets, the refusal also names the key of the
  // config. Throws Error if the inner backend fails without a refusal.
  void plan(const YokePlanArgs& args,
            const Strategy& strategy,
            const AccelerateConfig& config,
            YokePlan& plan,
            PlanReport& report) const;
  // Returns the context of the inner backend. plan must outlive it. Collective.
  std::unique_ptr<Context> init(const YokePlan& plan) const { return inner_.init(plan); }

  static constexpr const char* kName = "ptd";

 private:
  InnerBackend inner_;
};

}  // namespace yoke::accelerate_compat
