// The rules about plan.
#pragma once

#include "yoke/inner.hpp"
#include "yoke/plan_report.hpp"

namespace yoke::validate {

// Lets the inner backend fill the plan, and passes its refusals on. Calls it twice. Throws Error
// for a violation; if `warn` is set, reports a note instead.
void checked_plan(const InnerBackend& inner,
                  const YokePlanArgs& args,
                  bool warn,
                  YokePlan& plan,
                  PlanReport& report);

}  // namespace yoke::validate
