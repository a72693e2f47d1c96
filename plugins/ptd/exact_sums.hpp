// Checks whether a plan supports ptd.exact_sums, with which losses, norms and parameters are
// bit-identical for every pp_degree, schedule and cut. No side effects.
#pragma once

#include "plugins/ptd/options.hpp"
#include "yoke/backend.hpp"

namespace yoke::ptd {

// Refuses exact sums in a plan in which some sum would depend on the pipeline. Does nothing without
// them. The degrees must be set.
void check_exact_sums(const YokeModelSummary& model,
                      const YokePlan& plan,
                      const PtdOptions& options,
                      PlanReport& report);

}  // namespace yoke::ptd
