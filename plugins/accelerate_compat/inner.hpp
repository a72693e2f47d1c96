// The backend that does what is not DDP: opened through "yoke.backends/1", told what the Accelerate
// config says, and then called as a host would call it. No LibTorch.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "plugins/accelerate_compat/strategy.hpp"
#include "yoke/inner.hpp"

namespace yoke::accelerate_compat {

// Throws Error if the host cannot open backends, or not this one.
class Inner {
 public:
  // While a plan is made, and on a rank.
  explicit Inner(const YokePlanArgs& args) : inner_(args, kName) {}
  explicit Inner(const YokeHost& host) : inner_(host, kName, YOKE_ALL_AXES) {}

  // Sets what the config says; what [its name] of the run file says otherwise becomes a finding.
  void set(const std::vector<InnerOption>& options,
           const AccelerateConfig& config,
           std::vector<Finding>& findings);

  // Its refusals go where those of args go; one of a degree that the config sets names the key
  // there. Throws Error if it fails without giving a reason.
  void plan(const YokePlanArgs& args,
            const Strategy& strategy,
            const AccelerateConfig& config,
            YokePlan& plan,
            PlanReport& refusals) const;
  // plan lives until the result is destroyed. Collective.
  std::unique_ptr<Context> init(const YokePlan& plan) const { return inner_.init(plan); }

  static constexpr const char* kName = "ptd";

 private:
  InnerBackend inner_;
};

}  // namespace yoke::accelerate_compat
